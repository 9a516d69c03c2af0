-- The counter of a window: see window_counter.rs. `current` is the number of the window, `ends` the
-- first µs after it.
-- State: the number of the window, and what was spent in it.
local stepped_back = false
if not window or window < current then
  spent = 0
else
  -- a window of the future is this one, after a clock that stepped back; that is written down even
  -- if nothing is spent, or else it would go on to be this one
  spent, stepped_back = math.min(spent, limit), window > current
end

allowed = cost <= limit - spent
if not allowed then
  cost = 0
elseif cost < 0 then
  -- no more comes back than was spent
  cost = math.max(cost, -spent)
elseif n then
  cost = cost * math.min(n, math.floor((limit - spent) / cost))
end
spent = spent + cost
if cost ~= 0 or (stepped_back and spent > 0) then
  window = current
  expiry = spent > 0 and ends or now
end
