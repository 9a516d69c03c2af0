-- The quota that a client has of its own, which stands behind its state: see overrides.rs. `decide` is the function of the
-- algorithm.

-- Whether there are holds, a debt and a block behind the numbers of a state.
local function has_extra(state)
  return #state == 72 or #state == 80 or #state > 96 and #state % 16 == 1
end

-- The debt of a state as it is at this moment: the least that has to be given back for nothing to be owed.
local function owed_of(decide, state, at, limit, period, count)
  local low, high = 0, has_extra(state) and struct.unpack('<L', state, 57) or 0
  if high == 0 then
    return 0
  end
  state, low = string.sub(state, 1, 24) .. struct.pack('<LLLLLL', 0, 0, 0, 0, high, 0), 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, new = decide(state, at, -middle, limit, period, count, 0)
    if #new == 24 then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- The state from a moment on in which as many units of a quota are missing as of the one before, and when it is whole. What
-- is more than the quota is owed.
local function carry_over(decide, stored, at, limit, period, count, to_limit, to_period, to_count)
  local _, state, expiry = decide(stored, at, 0, limit, period, count, 0, nil, nil, nil, true)
  if limit == to_limit and period == to_period and count == to_count then
    return state, expiry
  end
  local debt = owed_of(decide, state, at, limit, period, count)
  local blocked_until = has_extra(state) and struct.unpack('<L', state, 65) or 0
  -- as many requests of one unit as there could be would spend what remains
  local remaining = select(5, decide(string.sub(state, 1, 24), at, 1, limit, period, count, 0, nil, nil, 2 ^ 53))
  local carried, whole = '', at
  if blocked_until > at then
    carried, whole = string.rep('\0', 24) .. struct.pack('<LLLLLL', 0, 0, 0, 0, 0, blocked_until), blocked_until
  end
  for _, units in ipairs({limit - remaining, debt}) do
    if units > 0 then
      local _, new, later = decide(carried, at, units, to_limit, to_period, to_count, 0, 1)
      -- a debt that has its full size takes nothing more
      carried, whole = new or carried, new and later or whole
    end
  end
  return carried, whole
end

-- The parts of what is stored of a client: its state, the quota that it counts by, and the record of a quota of its own with its end, which
-- is 0 where it has none. Where it counts by that of the line, the record is only kept.
local function individual(decide, stored, now, limit, period, count)
  local record, record_ends
$own_record
  if not record then
    return stored, limit, period, count, '', 0
  end
  local its_limit, its_period, its_count = struct.unpack('<LLL', record)
  local ends = record_ends
  local is_over = ends > 0 and ends <= now
  if math.min(its_limit, its_count) < 1 or math.max(its_limit, its_period, its_count) > 2 ^ 53 then
    return stored, limit, period, count, '', 0
  elseif not is_own then
    return stored, limit, period, count, is_over and '' or record, is_over and 0 or ends
  elseif is_over then
    stored = carry_over(decide, stored, ends, its_limit, its_period, its_count, limit, period, count)
    return stored, limit, period, count, '', 0
  end
  return stored, its_limit, its_period, its_count, record, ends
end

-- Writes a state of this quota, which is whole at `expiry`, and the record behind it. `line` is the quota of the line.
local function keep(decide, key, state, expiry, now, limit, period, count, record, ends, line)
  if record ~= '' and ends == 0 then
    redis.call('SET', key, state .. record)
    return
  end
  if ends > 0 and expiry > ends then
    local _, whole = carry_over(decide, state, ends, limit, period, count, line[1], line[2], line[3])
    expiry = math.max(expiry, whole)
  end
  -- rounded as in write.lua
  expiry = math.max(expiry, ends, now + 1)
  redis.call('SET', key, state .. record, 'PXAT', string.format('%d', (expiry + -expiry % 1000) / 1000))
end
