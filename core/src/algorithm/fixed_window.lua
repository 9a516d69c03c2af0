-- Fixed window: see fixed_window.rs.
-- State: the number of the window, and what was spent in it. With a debt that is more than the limit.
-- A window is period microseconds: see window.lua. If that is 0 it is a month of the calendar.

--- decide
-- the number of the present window, and the first microsecond after it, or after a later one; nil where all are a period long
local current, ends, end_after
if period == 0 then
  $month
else
  $aligned
  current, ends = (aligned - elapsed) / period, now - elapsed + period
end

local stepped_back = false
if not window or (window < current and debt == 0) then
  spent = 0
else
  -- a window of the future is this one, after a clock that stepped back; that is written down even
  -- if nothing is spent, or else it would go on to be this one
  spent, debt, stepped_back = math.min(spent, limit) + debt, 0, window > current
  if window < current then
    spent = math.max(0, spent - (current - window) * limit)
  end
end

allowed = cost <= 0 or cost <= limit - spent
if not allowed then
  cost = since and since > 0 and math.min(cost, $max_spent * limit - spent) or 0
elseif cost < 0 then
  if since and since > 0 and since < (end_after and end_after(-1) or ends - period) then
    -- it was spent in a window that has ended
    cost = 0
  end
  -- no more comes back than was spent
  cost = math.max(cost, -spent)
elseif n and cost > 0 then
  cost = cost * math.min(n, math.floor((limit - spent) / cost))
end
spent = spent + cost
remaining = limit - spent
changed = cost ~= 0 or (stepped_back and spent > 0)
if changed or block then
  window = current
  expiry = spent > 0 and ends or now
  if spent > limit then
    local later = math.ceil(spent / limit) - 1
    expiry = end_after and end_after(later) or ends + later * period
    spent, debt = limit, spent - limit
  end
end

--- month
-- Days and months are counted from 1 March of the year 0, 719,468 days before the epoch, so that
-- the leap day is the last day of a year of twelve months.
local function first_day(number)
  local month = number % 12
  local year = (number - month) / 12
  local leap_days = math.floor(year / 4) - math.floor(year / 100) + math.floor(year / 400)
  return 365 * year + leap_days + math.floor((153 * month + 2) / 5)
end

local day = math.floor(now / 86400000000) + 719468
-- the mean month has 146,097 / 4,800 days: by that half a month later is this one or the next
current = math.floor((day + 15) * 4800 / 146097)
if first_day(current) > day then
  current = current - 1
end
end_after = function(windows)
  return (first_day(current + 1 + windows) - 719468) * 86400000000
end
ends = end_after(0)
