-- Changes what a client has of one limit whose algorithm stores itself, or looks at it. KEYS and ARGV are those of
-- manage.lua. Answers one string: the seconds and microseconds of the time, and as numbers of eight bytes what remains, when
-- it is whole and when one unit can pass, in microseconds from now, until when the client is blocked, its debt, and the quota
-- of its own or zeros: its limit, its end, and the two numbers of its rate.
local is_own = $is_own
$own_log
$algorithm
local key, argv = KEYS[1], ARGV
local time = redis.call('TIME')
local seconds, micros = time[1], time[2]
local now = seconds * 1000000 + micros
local change, line = argv[1], {argv[2] + 0, argv[3] + 0}

local function log(cost)
  return $function(key, now, cost, line[1], line[2], 0, 0)
end

-- The debt and since when it is owed, until when the client is blocked, whether a head says so, and the quota behind it.
local function head()
  local first = redis.call('LINDEX', key, 0) or ''
  local debt, since, blocked_until, its = string.match(first, '^x (%d+) (%d+) (%d+) ?(.*)$')
  if not debt then
    return 0, 0, 0, 0
  end
  return debt + 0, since + 0, blocked_until + 0, 1, own_of(its)
end

-- it corrects what is of another time
local _, _, _, _, store = log(0)
if store then
  store()
end
local own = found
local debt, since, blocked_until, heads, record = head()
-- a line without `override` keeps a quota of the client's own until it ends
if record and record[3] > 0 and record[3] <= now then
  record = nil
end
local limit, period = own and own[1] or line[1], own and own[2] or line[2]

-- Replaces the head.
local function write_head()
  if heads == 1 then
    redis.call('LPOP', key)
  end
  push_head(key, now, debt, since, blocked_until, record)
end

local changes = {}

function changes.reset()
  redis.call('DEL', key)
  push_head(key, now, 0, 0, 0, record)
end

function changes.give_back()
  debt, since = owed(debt, since, now, limit, period)
  local units = argv[5] + 0
  local paid = math.min(units, debt)
  debt = debt - paid
  write_head()
  local _, _, _, _, store = log(paid - units)
  if units > paid and store then
    store()
  end
end

function changes.block()
  local span = argv[5] + 0
  blocked_until = span > 0 and now + span or 0
  write_head()
end

local function change_quota(to_limit, to_period, its)
  carry_log_over(key, now, now, limit, period, debt, since, blocked_until, heads, to_limit, to_period, its)
  own, record, limit, period = its, its, to_limit, to_period
end

function changes.set_override()
  local lasts = argv[8] + 0
  if lasts == 0 then
    redis.call('PERSIST', key)
  end
  local ends = lasts > 0 and now + lasts or 0
  local text = string.format('%d %d %d %s %s', argv[5], argv[6], ends, argv[9], argv[10])
  change_quota(argv[5] + 0, argv[6] + 0, own_of(text))
end

function changes.remove_override()
  change_quota(line[1], line[2], nil)
end

if changes[change] then
  changes[change]()
end
debt, since, blocked_until, heads = head()
debt = owed(debt, since, now, limit, period)
local _, _, reset = log(0)
if changes[change] then
  keep_log(key, now, reset, debt, heads, record, own and line)
end
local allowed, _, _, retry = log(1)
retry = allowed == 1 and 0 or math.max(0, retry)
local remaining = math.max(0, limit - debt - spent_of(key, now, period, heads))
own = own or {0, 0, 0, 0, 0}
return seconds .. ' ' .. micros .. ' ' .. struct.pack('<LLLLLLLLL', remaining, reset, retry, blocked_until,
  debt, own[1], own[3], own[4], own[5])
