
-- Asks several limits, and spends only if all of them allow it.
-- KEYS: one a limit. ARGV, five a limit: algorithm, cost, limit, period, count.
-- Answers allowed, remaining, reset and retry for each in turn, the last two in microseconds.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local pending = {}

-- Two limits may share a key: the second one sees what the first is about to spend.
local function ask(i, cost)
  local key, a = KEYS[i], (i - 1) * 5
  local allowed, remaining, reset, retry, state, ttl = algorithms[ARGV[a + 1]](
    pending[key] and pending[key].state or redis.call('GET', key), now,
    cost or tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]),
    tonumber(ARGV[a + 5]))
  if state then
    pending[key] = {state = state, ttl = ttl}
  end
  return {allowed, remaining, reset, retry}
end

local answers, pass = {}, true
for i = 1, #KEYS do
  answers[i] = ask(i)
  pass = pass and answers[i][1] == 1
end

if pass then
  for key, write in pairs(pending) do
    redis.call('SET', key, write.state, 'PX', write.ttl)
  end
else
  -- nothing is spent: those that would have passed answer for what they hold
  pending = {}
  for i = 1, #KEYS do
    if answers[i][1] == 1 then
      answers[i] = ask(i, 0)
    end
  end
end

local reply = {}
for i = 1, #KEYS do
  for j = 1, 4 do
    reply[#reply + 1] = answers[i][j]
  end
end
return reply
