
-- Asks one limit whose algorithm stores itself. KEYS: its key. ARGV: cost, limit, period, count.
-- A cost below zero is given back.
-- Answers allowed, remaining, reset and retry, the last two in microseconds.
local time = redis.call('TIME')
local allowed, remaining, reset, retry, store = $algorithm(
  KEYS[1], time[1] * 1000000 + time[2],
  tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
if store then
  store()
end
return {allowed, remaining, reset, retry}
