-- Sliding window counter: see sliding_window.rs.
-- State: the number of this window, what was spent in it, and what was spent in the one before. With
-- a debt more is spent in this one than the limit.
-- A window is period units of count microseconds: see window.lua.

--- decide
$aligned
local this, rest, stepped_back = (aligned - elapsed) / period, period - elapsed, false
local passed = window and this - window
if not passed or (passed > 1 and debt == 0) then
  current, previous = 0, 0
elseif passed > 0 then
  local before = math.max(0, math.min(current, limit) + debt - (passed - 1) * limit)
  current, previous, debt = math.max(0, before - limit), math.min(before, limit), 0
else
  -- a window of the future is this one, after a clock that stepped back; that is written down even
  -- if nothing is spent, or else it would go on to be this one
  current, previous, debt = math.min(current, limit) + debt, math.min(previous, limit), 0
  stepped_back = passed < 0
end

local weighted = math.floor(previous * rest / period)
remaining = math.max(0, limit - current - weighted)
allowed = cost <= remaining
if not allowed then
  cost = since and since > 0 and math.min(cost, $max_spent * limit - current) or 0
elseif cost < 0 then
  previous = weighted > 0 and previous or 0
  -- no more comes back than was spent: of this window first, then of the previous one, of which as
  -- much less counts; or only of that in which it was spent
  local newer, older = math.min(current, -cost), 0
  if since and since > 0 then
    local then_aligned = (since - since % count) / count + (aligned - units)
    local age = this - (then_aligned - then_aligned % period) / period
    newer, older = age <= 0 and newer or 0, age == 1 and math.min(previous, -cost) or 0
  elseif newer < -cost then
    local counting = weighted + newer + cost
    older = previous - (counting > 0 and math.min(previous, math.floor(((counting + 1) * period - 1) / rest)) or 0)
  end
  cost = -newer - older
  current, previous = current + older, previous - older
  weighted = math.floor(previous * rest / period)
elseif n and cost > 0 then
  cost = cost * math.min(n, math.floor(remaining / cost))
end
current, remaining = current + cost, remaining - cost
if weighted == 0 then
  previous = 0
end
changed = cost ~= 0 or (stepped_back and current + previous > 0)
if changed or block then
  window = this
  -- Until so little is left of a window that nothing of it counts: units that, times what was
  -- spent, are less than a period. -a % b is what is missing from a to a multiple of b.
  expiry = now
  if current > 0 then
    local windows, last = 1, current
    if current > limit then
      -- the last one that begins with some of the debt
      windows = math.ceil(current / limit)
      last, current, debt = current - (windows - 1) * limit, limit, current - limit
    end
    expiry = (units + rest + windows * period - (period + -period % last) / last + 1) * count
  elseif previous > 0 then
    expiry = (units + rest - (period + -period % previous) / previous + 1) * count
  end
end
