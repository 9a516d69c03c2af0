
-- Asks one limit. KEYS: its key. ARGV: cost, limit, period, count; and n, to ask n times: as many
-- pass as fit. A cost below zero is given back.
-- Answers the time in microseconds, and what was stored, if anything was.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stored = redis.call('GET', KEYS[1])
local _, new, ttl = $algorithm(
  stored, now, ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5])
if new then
  -- a quota that is whole again is kept for no longer than it must
  redis.call('SET', KEYS[1], new, 'PX', ttl > 0 and ttl or 1)
end
return {now, stored}
