-- Checks one limit. KEYS: its key. ARGV: limit, period, count, n, cost; and block, since, dry_run. Those
-- at the end that are 1, and of the last three 0, may be left out. n requests are decided one after
-- the other: as many pass as fit. With since it corrects a charge, which can have been regained since then: the
-- cost is charged whatever is left, or, if it is below zero, given back. dry_run makes no difference here.
-- Answers one string, which takes Redis less than an array would: the seconds and microseconds of
-- the time, and what was stored, if anything was.
local call, key, argv, struct = redis.call, KEYS[1], ARGV, struct
local time, stored = call('TIME'), call('GET', key)
local seconds, micros = time[1], time[2]
local now = seconds * 1000000 + micros
local limit, period, count = argv[1] + 0, argv[2] + 0, (argv[3] or 1) + 0
local n, cost = argv[4], (argv[5] or 1) + 0
local block, since, requested, touch, record, record_ends = argv[6]
if block then
  since = argv[7]
end
$own_record
$decide
if changed then
$write
end
return seconds .. ' ' .. micros .. ' ' .. stored
