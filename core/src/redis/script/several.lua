
-- Asks several limits, and spends only if all of them allow it.
-- KEYS: one a limit. ARGV, five a limit: algorithm, cost, limit, period, count.
-- Costs below zero are given back, which is always allowed.
-- Answers allowed, remaining, reset and retry for each in turn, the last two in microseconds.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local pending = {}

-- Two limits may share a key: the second one sees what the first is about to spend.
local function ask(i, cost)
  local key, a = KEYS[i], (i - 1) * 5
  local name, before = ARGV[a + 1], pending[key]
  local limit, period, count = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
  cost = cost or tonumber(ARGV[a + 2])
  local stored, spends = key, cost
  if name == 'sliding_log' then
    -- it reads for itself, and so cannot see what is not written yet: both are spent as one
    spends = cost + (before and before.cost or 0)
  else
    stored = before and before.new or redis.call('GET', key)
  end
  local allowed, remaining, reset, retry, new, ttl = algorithms[name](
    stored, now, spends, limit, period, count)
  if new then
    pending[key] = {new = new, ttl = ttl, cost = spends}
  end
  return {allowed, remaining, reset, retry}
end

local answers, pass = {}, true
for i = 1, #KEYS do
  answers[i] = ask(i)
  pass = pass and answers[i][1] == 1
end

if not pass then
  -- nothing is spent: all answer for what they hold
  pending = {}
  for i = 1, #KEYS do
    local unspent = ask(i, 0)
    if answers[i][1] == 0 then
      unspent[1], unspent[4] = 0, answers[i][4]
    end
    answers[i] = unspent
  end
end

for key, write in pairs(pending) do
  if write.ttl then
    -- a quota that is whole again is kept for no longer than it must
    redis.call('SET', key, write.new, 'PX', write.ttl > 0 and write.ttl or 1)
  else
    write.new()
  end
end

local reply = {}
for i = 1, #KEYS do
  for j = 1, 4 do
    reply[#reply + 1] = answers[i][j]
  end
end
return reply
