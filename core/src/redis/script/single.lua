
-- Asks one limit. KEYS: its key. ARGV: cost, limit, period, count.
-- A cost below zero is given back.
-- Answers allowed, remaining, reset and retry, the last two in microseconds.
local time = redis.call('TIME')
local allowed, remaining, reset, retry, new, ttl = $algorithm(
  redis.call('GET', KEYS[1]), time[1] * 1000000 + time[2],
  tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
if new then
  -- a quota that is whole again is kept for no longer than it must
  redis.call('SET', KEYS[1], new, 'PX', ttl > 0 and ttl or 1)
end
return {allowed, remaining, reset, retry}
