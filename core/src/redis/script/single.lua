
-- Asks one limit. KEYS: its key. ARGV: cost, limit, period, count.
-- Answers allowed, remaining, reset and retry, the last two in microseconds.
local time = redis.call('TIME')
local allowed, remaining, reset, retry, new, ttl = $algorithm(
  redis.call('GET', KEYS[1]), time[1] * 1000000 + time[2],
  tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
if new then
  redis.call('SET', KEYS[1], new, 'PX', ttl)
end
return {allowed, remaining, reset, retry}
