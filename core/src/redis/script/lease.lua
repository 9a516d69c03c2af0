-- Leases: see algorithm/lease.rs. The arguments of a limit begin after ARGV[a]; held has what algorithms say of their states.

-- Runs the algorithm of a limit, which is given something back, written down as it is, or charged.
local function run(a, stored, cost, since, touch)
  local _, new, expiry = algorithms[ARGV[a + 1]](stored, now, cost, ARGV[a + 3] + 0, ARGV[a + 4] + 0,
    ARGV[a + 5] + 0, ARGV[a + 6] + 0, since, nil, nil, touch)
  return new, new and expiry
end

-- Whether leases end with a window: then nothing is held, and the time of a hold is 0.
local function is_window(a)
  return ARGV[a + 10] == '0'
end

-- The two holds, what was charged meanwhile, the debt and the block of what is stored.
local function extra(a, stored)
  if not stored or #stored ~= 72 and #stored ~= 80 and (#stored < 97 or #stored % 16 ~= 1) then
    return 0, 0, 0, 0, 0, 0, 0
  end
  local older, older_until, newer, newer_until, debt, blocked_until =
    struct.unpack('<LLLLLL', stored, 25)
  local charged = #stored >= 80 and struct.unpack('<L', stored, 73) or 0
  local limit, period, count = ARGV[a + 3] + 0, ARGV[a + 4] + 0, ARGV[a + 5] + 0
  local latest = now + $longest - now % 2
  return older, math.min(older_until, latest), newer, math.min(newer_until, latest), charged, debt, blocked_until
end

local function with_extra(stored, older, older_until, newer, newer_until, charged, debt, blocked_until)
  return string.sub(stored, 1, 24)
    .. struct.pack('<LLLLLL', older, older_until, newer, newer_until, debt, blocked_until)
    .. (charged > 0 and struct.pack('<L', charged) or '')
end

-- The state that the machine has computed; nil if it is of no use.
local function computed(a)
  local first, second, third = held[ARGV[a + 1]].computed(
    ARGV[a + 16] + 0, ARGV[a + 17] + 0, ARGV[a + 18] + 0, now, ARGV[a + 4] + 0, ARGV[a + 5] + 0)
  return first and struct.pack('<LLL', first, second, third)
end

-- Whether more remains of the first of two states, both as they are now.
local function has_more(a, one, other)
  local first, second, third = struct.unpack('<LLL', one)
  local others, other_second, other_third = struct.unpack('<LLL', other)
  -- the sixth number is the debt
  local debt, other_debt = select(6, extra(a, one)), select(6, extra(a, other))
  return held[ARGV[a + 1]].has_more(
    first, second, third, debt, others, other_second, other_third, other_debt)
end

-- Takes note of what became of a lease of so many units. Makes what is stored then, and, if that is
-- anything new, when it expires.
local function report(a, stored, of)
  local unused, ends = ARGV[a + 14] + 0, ARGV[a + 15] + 0
  if is_window(a) then
    local new, expiry = run(a, stored, -unused, math.max(1, ends - 1))
    return new or stored, expiry
  end
  local older, older_until, newer, newer_until, charged, debt, blocked_until = extra(a, stored)
  local is_newer = newer > 0 and newer_until > now and newer_until == ends
  if not is_newer and (older == 0 or older_until <= now or older_until ~= ends) then
    -- the hold has ended: what it held was counted as spent then, and may have been regained since
    local new, expiry
    if ends <= now then
      new, expiry = run(a, stored, -unused, math.max(1, ends))
    end
    return new or stored, expiry
  end
  -- until now all of it was held
  local new = run(a, stored, 0, nil, true)
  local owed = debt
  older, older_until, newer, newer_until, charged, debt, blocked_until = extra(a, new)
  local others = math.max(0, charged - ARGV[a + 19])
  if is_newer then
    newer = math.max(0, newer - of)
    newer_until = newer > 0 and newer_until or 0
  else
    older = math.max(0, older - of)
    older_until = older > 0 and older_until or 0
  end
  others = others + math.min(ARGV[a + 3] + 0, older + newer)
  charged = math.min(2 ^ 53, charged + math.max(0, of - unused))
  local plain = computed(a)
  if plain and others == 0 then
    -- nobody else has spent anything: the machine knows what there is
    return run(a, with_extra(plain, 0, 0, 0, 0, 0, owed, blocked_until), 0, nil, true)
  end
  new = with_extra(new, older, older_until, newer, newer_until, charged, debt, blocked_until)
  local expiry
  new, expiry = run(a, new, -unused, nil, true)
  -- or else what it has computed, less what others have spent and hold, if more remains then
  local other = plain and run(a, with_extra(plain, 0, 0, 0, 0, 0, 0, 0), others, 1, true)
  if other and has_more(a, other, new) then
    debt = select(6, extra(a, other))
    new = with_extra(other, older, older_until, newer, newer_until, charged, debt, blocked_until)
    new, expiry = run(a, new, 0, nil, true)
  end
  return new, expiry
end

-- Sets units aside after a request that was allowed, where so many remain. Makes what is stored then,
-- and when it expires, if any are set aside.
local function grant(a, stored, remaining)
  local older, older_until, newer, newer_until, charged = extra(a, stored)
  local is_first = not is_window(a) and older == 0 and newer == 0
  local surplus, parts = math.max(0, remaining - ARGV[a + 12]), is_first and 2 or 4
  local units = math.min(ARGV[a + 11] + 0, (surplus - surplus % parts) / parts)
  if units < 1 then
    return
  elseif is_window(a) then
    return run(a, stored, units)
  end
  -- it lasts for as long as what is missing takes to come back: -a % b is what is missing from a to a multiple of b
  local missing, count = ARGV[a + 3] - remaining + units, ARGV[a + 5] + 0
  local hold = (missing + -missing % count) / count * ARGV[a + 4]
  hold = math.max(ARGV[a + 10] + 0, math.min($long, hold))
  local held_until = math.max(older_until, newer_until)
  if newer > 0 and now + hold <= newer_until then
    newer = newer + units
  elseif newer > 0 and older > 0 then
    return
  else
    if newer > 0 then
      older, older_until = newer, newer_until
    end
    newer_until = math.max(now + 2 * hold, older_until) + 2
    newer_until = newer_until - newer_until % 2
    newer = units
  end
  local new, expiry = run(a, stored, units)
  local debt, blocked_until = select(6, extra(a, new))
  new = with_extra(new, older, older_until, newer, newer_until, charged, debt, blocked_until)
  -- it begins to come back at the end of the hold; the sum of two times may be more than a double holds
  if held_until == 0 then
    expiry, held_until = expiry + ARGV[a + 4], now
  end
  return new, expiry + (newer_until - held_until)
end
