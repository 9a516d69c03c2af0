
-- Asks one limit. KEYS: its key. ARGV: limit, period, count, n, cost; those at the end that are 1
-- may be left out. n requests are decided one after the other: as many pass as fit. A cost below
-- zero is given back.
-- Answers one string, which takes Redis less than an array would: the seconds and microseconds of
-- the time, and what was stored, if anything was.
local call, key = redis.call, KEYS[1]
local time, stored = call('TIME'), call('GET', key)
local seconds, micros = time[1], time[2]
if stored and #stored > 64 then
  -- somebody else's, who knows how long: as good as nothing
  stored = false
end
local _, new, ttl = $algorithm(
  stored, seconds * 1000000 + micros,
  (ARGV[5] or 1) + 0, ARGV[1] + 0, ARGV[2] + 0, (ARGV[3] or 1) + 0, ARGV[4])
if new then
  -- a quota that is whole again is kept for no longer than it must
  call('SET', key, new, 'PX', ttl > 0 and ttl or 1)
end
return seconds .. ' ' .. micros .. ' ' .. (stored or '')
