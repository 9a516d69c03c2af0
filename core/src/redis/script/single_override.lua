-- Checks one limit of which clients may have a quota of their own. KEYS and ARGV are those of single.lua, and so is the
-- answer.
local is_own = true
$as_function
$override
local key, argv = KEYS[1], ARGV
local time, value = redis.call('TIME'), redis.call('GET', key)
local seconds, micros = time[1], time[2]
local now = seconds * 1000000 + micros
local line = {argv[1] + 0, argv[2] + 0, (argv[3] or 1) + 0}
local stored, limit, period, count, record, ends = individual($function, value, now, line[1], line[2], line[3])
local block = argv[6]
local _, new, expiry = $function(
  stored, now, (argv[5] or 1) + 0, limit, period, count, block, block and argv[7], nil, argv[4])
if new then
  keep($function, key, new, expiry, now, limit, period, count, record, ends, line)
end
return seconds .. ' ' .. micros .. ' ' .. (value or '')
