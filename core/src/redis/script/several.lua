-- Checks several limits, and spends only if all of them allow it, those of a dry run left out: if these
-- allow it too, they spend, and if not, only the others do.
-- KEYS: one a limit. ARGV, equally many a limit: algorithm, cost, limit, period, count; unless they
-- are 0 for all: block, since, dry_run; and, if one has something to say of leases: n, hold, want, share,
-- and of the last lease the units, those unused, the end, the three numbers of the plain state, and what was charged.
-- n requests about a single limit are decided one after the other: as many pass as fit.
-- Answers the time in microseconds, and for each limit in turn what was stored, if anything was;
-- of one whose algorithm stores itself: allowed, remaining, reset and retry, as single_own.lua does.
--@if override
local is_own
$own_log
--@end
$algorithms
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local answers, pending, left, last, width = {now}, {}, {}, {}, #ARGV / #KEYS
-- The parts of each value that are kept beside its state, by key.
local kept = {}
local is_extended, is_leased = width > 5, width > 8
--@if override
$override
-- The quotas of the lines, and of which of these clients may have others of their own.
local lines, owned = {}, {}
for i = 1, #KEYS do
  local a = (i - 1) * width
  local name, marks = string.gsub(ARGV[a + 1], '_override$', '')
  ARGV[a + 1] = name
  lines[i], owned[i] = {ARGV[a + 3] + 0, ARGV[a + 4] + 0, ARGV[a + 5] + 0}, marks > 0
end
--@end
$lease

-- How much of a key must be left for all limits that share it to spend at once, more than left, which is
-- too little; nil if no other limit shares it. A dry run does not spend what does not fit.
local function needed(key, left, limit)
  local sharers, missing
  repeat
    local rest = left
    sharers, missing = 0, nil
    for i = 1, #KEYS do
      if KEYS[i] == key then
        local cost = ARGV[(i - 1) * width + 2] + 0
        sharers = sharers + 1
        if cost <= rest then
          rest = rest - cost
        elseif not (is_extended and ARGV[(i - 1) * width + 8] == '1') then
          missing = missing or cost - rest
        end
      end
    end
    left = left + (missing or 0)
  until not missing or left > limit
  return sharers > 1 and left or nil
end

-- Whether limit i allows this cost, of the one that is requested. Two limits may share a key: the second
-- one sees what the first is about to spend.
local function check(i, cost, requested)
  local key, a = KEYS[i], (i - 1) * width
  local name, before = ARGV[a + 1], pending[key]
--@if override
  is_own = owned[i]
--@end
  local limit, period, count = ARGV[a + 3] + 0, ARGV[a + 4] + 0, ARGV[a + 5] + 0
  local block, since, n
  if is_extended then
    block, since = ARGV[a + 6] + 0, ARGV[a + 7] + 0
  end
  if stores_itself[name] then
    -- it reads for itself, and so cannot see what is not written yet: both are spent as one
    local spent = before and before.cost or 0
    cost = cost + spent
    local first = answers[i + 1]
    local is_rejected = first and first[1] == 0
    requested = first and (is_rejected and math.max(0, first[4]) or 0)
    if is_rejected and not (is_extended and ARGV[a + 8] == '1') then
      local shared = needed(key, math.max(0, first[2]), first[5] or limit)
      if shared and shared > first[2] then
        cost = shared
      end
    end
    local allowed, remaining, reset, retry, store =
      algorithms[name](key, now, cost, limit, period, block or 0, since or 0, requested)
    if store then
      pending[key] = {store = store, cost = allowed == 1 and cost or spent}
    end
    if is_rejected then
      allowed, retry = 0, allowed == 0 and retry or first[4]
    end
    answers[i + 1] = {allowed, remaining, reset, retry}
--@if override
    answer_own(answers[i + 1])
--@end
    return allowed == 1
  end
  local stored = answers[i + 1]
  if stored == nil then
    stored = call('GET', key)
    if stored and #stored > $longest_value then
      -- a value of another format, of any length: as if nothing is stored
      stored = false
    end
    answers[i + 1] = stored
  end
--@if override
  local line, record, ends = lines[i]
  stored, limit, period, count, record, ends = individual(algorithms[name], stored, now, line[1], line[2], line[3])
  ARGV[a + 3], ARGV[a + 4], ARGV[a + 5] = limit, period, count
  kept[key] = {algorithms[name], limit, period, count, record, ends, line}
--@else
  local record, record_ends
$own_record
  kept[key] = record and {record, record_ends}
--@end
  if before then
    stored = before.new
  end
  if is_leased then
    n = cost > 0 and ARGV[a + 9] + 0
    local of = ARGV[a + 13] + 0
    if of > 0 then
      local expires
      stored, expires = report(a, stored, of)
      if expires then
        pending[key] = {new = stored, expiry = expires}
      end
    end
  end
  local allowed, new, expiry, remaining, spent =
    algorithms[name](stored, now, cost, limit, period, count, block, since, requested, n)
  if new then
    pending[key] = {new = new, expiry = expiry}
  end
  if n then
    allowed = spent == cost * n
    left[i] = allowed and remaining
  end
  if is_leased then
    last[key] = i
  end
  return allowed
end

local pass, allowed = true, {}
for i = 1, #KEYS do
  local a = (i - 1) * width
  allowed[i] = check(i, ARGV[a + 2] + 0)
  pass = pass and (allowed[i] or (is_extended and ARGV[a + 8] == '1'))
end
if pass then
  -- what is set aside comes after all that is spent: of limits that share a key only the last does
  for i = 1, #KEYS do
    local before = last[KEYS[i]] == i and left[i] and pending[KEYS[i]]
    if before then
      local new, expiry = grant((i - 1) * width, before.new, left[i])
      if new then
        pending[KEYS[i]] = {new = new, expiry = expiry}
      end
    end
  end
elseif not is_leased or ARGV[9] == '1' then
  -- nothing is spent: all answer for what they hold
  pending = {}
  for i = 1, #KEYS do
    check(i, 0, allowed[i] and 0 or ARGV[(i - 1) * width + 2] + 0)
  end
end

for key, write in pairs(pending) do
  if write.store then
    write.store()
  else
--@if override
    local decide, limit, period, count, record, ends, line = unpack(kept[key])
    keep(decide, key, write.new, write.expiry, now, limit, period, count, record, ends, line)
--@else
    local new, expiry, record, record_ends = write.new, write.expiry
    if kept[key] then
      record, record_ends = unpack(kept[key])
    end
$write
--@end
  end
end
return answers
