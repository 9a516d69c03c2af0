-- Charges several limits, if all of them allow it. It is made for a list of algorithms: see list.rs.
-- KEYS: one a limit, all different. ARGV: one string of the limit, period, count and cost of each limit.
-- Answers one string: the seconds and microseconds of the time, and for each limit how many numbers
-- were stored, 0, 3, 9, or a colon for 10, and these.
local call, keys, numbers, struct = redis.call, KEYS, ARGV[1], struct
local time = call('TIME')
local seconds, micros = time[1], time[2]
local now = seconds * 1000000 + micros
$each
local stored$i, new$i, expiry$i, record$i, record_ends$i = call('GET', keys[$i])
local limit$i, period$i, count$i, cost$i = struct.unpack('<LLLL', numbers, 32 * $i - 31)
do
  local stored, record, record_ends = stored$i
$own_record
  stored$i, record$i, record_ends$i = stored, record, record_ends
end
$end
for _ = 1, 2 do
  local pass = true
$each
  do
    local stored, cost, limit, period, count = stored$i, cost$i, limit$i, period$i, count$i
    local n, block, since, requested, touch
$decide
    stored$i, new$i, expiry$i, pass = stored, new, expiry, pass and allowed
  end
$end
  if pass then
    break
  end
  -- nothing is spent; a second pass only corrects states that do not fit the time or the limit. In several.lua it has
  -- what was requested as well, for the blocks that begin: limits of a list begin none
$each
  cost$i = 0
$end
end
$each
if new$i then
  local key, new, expiry, record, record_ends = keys[$i], new$i, expiry$i, record$i, record_ends$i
$write
end
$end
return seconds .. ' ' .. micros .. ':'$each
 .. (stored$i == '' and '0' or #stored$i == 24 and '3' or #stored$i == 72 and '9' or ':') .. stored$i$end
