-- Changes what a client has of one limit, or looks at it. KEYS: its key. ARGV: the change, the limit, period and count of
-- the line, and of the change: the units that are given back; or for how long the client is blocked; or the limit, period
-- and count of a quota of its own, how long it lasts, or 0, and the two numbers of its rate.
-- Answers as single.lua does, but with what is stored then, behind a number of eight bytes: until when machines may spend
-- what was set aside for them before, or 0.
local is_own = $is_own
$as_function
$override
local key, argv = KEYS[1], ARGV
local time, value = redis.call('TIME'), redis.call('GET', key)
local seconds, micros = time[1], time[2]
local now = seconds * 1000000 + micros
local change, line = argv[1], {argv[2] + 0, argv[3] + 0, argv[4] + 0}
local stored, limit, period, count, record, ends = individual($function, value, now, line[1], line[2], line[3])

local held_until = 0
if stored and has_extra(stored) then
  local older, older_until, newer, newer_until = struct.unpack('<LLLL', stored, 25)
  held_until = math.max(older > 0 and older_until or 0, newer > 0 and newer_until or 0)
end

-- The state as it is now, and when it is whole.
local function touched(state)
  local _, new, expiry = $function(state, now, 0, limit, period, count, 0, nil, nil, nil, true)
  return new, expiry
end

local changes = {}

function changes.reset()
  return ''
end

-- The shortage of before is no longer known, so that no earlier charge can be corrected to less any more; and a machine
-- that holds units does not take over a state without these.
function changes.give_back()
  local units = argv[5] + 0
  local _, state = $function(stored, now, -units, limit, period, count, 0)
  state = touched(state or stored)
  if not has_extra(state) then
    return string.sub(state, 1, 24)
  end
  local older, _, newer = struct.unpack('<LLL', state, 25)
  local charged = #state >= 80 and struct.unpack('<L', state, 73) or 0
  charged = older + newer > 0 and math.min(2 ^ 53, charged + units) or 0
  return string.sub(state, 1, 72) .. (charged > 0 and struct.pack('<L', charged) or '')
end

function changes.block()
  local state, blocked_until = touched(stored), argv[5] + 0
  if blocked_until > 0 then
    blocked_until = now + blocked_until
  end
  if has_extra(state) then
    return string.sub(state, 1, 64) .. struct.pack('<L', blocked_until) .. string.sub(state, 73)
  end
  local steps = string.sub(state, 25)
  return string.sub(state, 1, 24) .. struct.pack('<LLLLLL', 0, 0, 0, 0, 0, blocked_until)
    .. (steps ~= '' and '\0\0\0\0\0\0\0\0' .. steps or '')
end

local function change_quota(its, its_record, its_end)
  local state = carry_over($function, stored, now, limit, period, count, its[1], its[2], its[3])
  limit, period, count, record, ends = its[1], its[2], its[3], its_record, its_end
  return state
end

function changes.set_override()
  local lasts = argv[8] + 0
  local its, its_end = {argv[5] + 0, argv[6] + 0, argv[7] + 0}, lasts > 0 and now + lasts or 0
  return change_quota(its, struct.pack('<LLLLLL', its[1], its[2], its[3], its_end, argv[9], argv[10]) .. 'o\1', its_end)
end

function changes.remove_override()
  return change_quota(line, '', 0)
end

if changes[change] then
  local state, expiry = touched(changes[change]())
  if expiry <= now then
    state = ''
  end
  if state == '' and record == '' then
    redis.call('DEL', key)
  else
    keep($function, key, state, expiry, now, limit, period, count, record, ends, line)
  end
  value = state .. record
end
return seconds .. ' ' .. micros .. ' ' .. struct.pack('<L', held_until) .. (value or '')
