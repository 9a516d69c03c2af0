-- The counter of a window: see window_counter.rs. `current` is the number of the window, `ends` the
-- first µs after it, and `end_after(windows)` that after a later one; nil where all are a period long.
-- State: the number of the window, and what was spent in it. With a debt that is more than the limit.
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
  cost = since and since > 0 and math.min(cost, 11 * limit - spent) or 0
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
