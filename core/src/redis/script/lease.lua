-- Leases: see algorithm/lease.rs. The arguments of a limit begin after ARGV[a].

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

-- The two holds, the debt and the block of what is stored.
local function extra(stored)
  if not stored or #stored ~= 72 then
    return 0, 0, 0, 0, 0, 0
  end
  local older, older_until, newer, newer_until, debt, blocked_until =
    struct.unpack('<LLLLLL', stored, 25)
  local latest = now + $longest - now % 2
  return older, math.min(older_until, latest), newer, math.min(newer_until, latest), debt, blocked_until
end

local function with_extra(stored, ...)
  return string.sub(stored, 1, 24) .. struct.pack('<LLLLLL', ...)
end

-- How many units a bucket, which is written down as it is now, may have regained since the end of a hold. As
-- good as all, if it takes numbers that are not exact, or if the clock has stepped back.
local function regained(a, touched, ends)
  local period, count, elapsed = ARGV[a + 4] + 0, ARGV[a + 5] + 0, now - ends
  if elapsed < 0 then
    return math.huge
  elseif ARGV[a + 1] == 'interval_bucket' then
    -- a shared hold lasts a µs longer; refills are a period apart at least, and the last one may have
    -- been before the moment that is stored
    local _, last = struct.unpack('<LL', touched)
    local after = last - (ends + 1 - ends % 2)
    return after > 0 and ((after - after % period) / period + 1) * count or 0
  end
  local parts = elapsed * count
  return parts < 2^53 and (parts - parts % period) / period + 1 or math.huge
end

-- Takes note of what became of a lease of so many units. Makes what is stored then, and, if that is
-- anything new, when it expires.
local function report(a, stored, of)
  local unused, ends = ARGV[a + 14] + 0, ARGV[a + 15] + 0
  if is_window(a) then
    local new, expiry = run(a, stored, -unused, math.max(1, ends - 1))
    return new or stored, expiry
  end
  local older, older_until, newer, newer_until, debt, blocked_until = extra(stored)
  local is_newer = newer == of and newer_until == ends and older == 0
  if ARGV[a + 17] + 0 < now and (is_newer or (older == of and older_until == ends and newer == 0)) then
    -- only this machine has spent anything: it knows what there is
    local plain = struct.pack('<LLL', ARGV[a + 16] + 0, ARGV[a + 17] + 0, ARGV[a + 18] + 0)
    return run(a, with_extra(plain, 0, 0, 0, 0, debt, blocked_until), 0, nil, true)
  end

  local function is_held(units, till)
    return units > 0 and till > now and till - till % 2 == ends
  end
  is_newer = is_held(newer, newer_until)
  if not is_newer and not is_held(older, older_until) then
    -- the hold has ended: what it held was counted as spent then, and may have been regained since
    local touched = stored and run(a, stored, 0, nil, true)
    unused = stored and unused - regained(a, touched, ends) or 0
    if unused <= 0 then
      return stored
    end
    local new, expiry = run(a, touched, -unused, nil, true)
    return new, new ~= stored and expiry
  end
  -- until now all of it was held
  local new = run(a, stored, 0, nil, true)
  older, older_until, newer, newer_until, debt, blocked_until = extra(new)
  if is_newer then
    newer = math.max(0, newer - of)
    newer_until = newer > 0 and newer_until or 0
  else
    older = math.max(0, older - of)
    older_until = older > 0 and older_until or 0
  end
  new = with_extra(new, older, older_until, newer, newer_until, debt, blocked_until)
  return run(a, new, -unused, nil, true)
end

-- Sets units aside after a request that was allowed, where so many remain. Makes what is stored then,
-- and when it expires, if any are set aside.
local function grant(a, stored, remaining)
  local span, share = ARGV[a + 10] + 0, math.floor(remaining / ARGV[a + 12])
  local units = math.min(ARGV[a + 11] + 0, share)
  if units < 1 then
    return
  elseif is_window(a) then
    return run(a, stored, units)
  end
  local older, older_until, newer, newer_until = extra(stored)
  if newer > 0 and now + span <= newer_until then
    newer = newer + units
  elseif newer > 0 and older > 0 then
    return
  else
    if newer > 0 then
      older, older_until = newer, newer_until
    end
    newer_until = math.max(now + 2 * span, older_until) + 2
    newer_until = newer_until - newer_until % 2 + (older > 0 and 1 or 0)
    newer = units
  end
  local new, expiry = run(a, stored, units)
  local _, _, _, _, debt, blocked_until = extra(new)
  new = with_extra(new, older, older_until, newer, newer_until, debt, blocked_until)
  -- it begins to come back at the end of the hold; the sum of two times may be more than a double holds
  return new, expiry + ARGV[a + 4] + (newer_until - now)
end
