-- Sliding window counter: see sliding_window.rs.
-- State: the number of this window, what was spent in it, and what was spent in the one before.
-- A window is period units of count microseconds. Those of whole weeks begin on Mondays, and a
-- Monday was three days before the epoch.
local units = (now - now % count) / count
local aligned, length = units, period * count
if length >= 604800000000 and length % 604800000000 == 0 then
  aligned = units + 259200000000 / count
end
local elapsed = aligned % period
local this, rest, stepped_back = (aligned - elapsed) / period, period - elapsed, false
local passed = window and this - window
if not passed or passed > 1 then
  current, previous = 0, 0
elseif passed == 1 then
  current, previous = 0, math.min(current, limit)
else
  -- a window of the future is this one, after a clock that stepped back; that is written down even
  -- if nothing is spent, or else it would go on to be this one
  current, previous = math.min(current, limit), math.min(previous, limit)
  stepped_back = passed < 0
end

local weighted = math.floor(previous * rest / period)
local remaining = math.max(0, limit - current - weighted)
allowed = cost <= remaining
if not allowed then
  cost = 0
elseif cost < 0 then
  -- no more comes back than was spent: of this window first, then of the previous one
  previous = weighted > 0 and previous or 0
  cost = math.max(cost, -current - previous)
  local older = math.min(0, current + cost)
  current, previous = current - older, previous + older
  weighted = math.floor(previous * rest / period)
elseif n then
  cost = cost * math.min(n, math.floor(remaining / cost))
end
current = current + cost
if weighted == 0 then
  previous = 0
end
if cost ~= 0 or (stepped_back and current + previous > 0) then
  window = this
  -- Until so little is left of a window that nothing of it counts: units that, times what was
  -- spent, are less than a period. -a % b is what is missing from a to a multiple of b.
  expiry = now
  if current > 0 then
    expiry = (units + rest + period - (period + -period % current) / current + 1) * count
  elseif previous > 0 then
    expiry = (units + rest - (period + -period % previous) / previous + 1) * count
  end
end
