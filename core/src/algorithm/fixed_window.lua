-- Fixed window: see fixed_window.rs.
-- Stored: "<window> <spent>": the number of the period, and what was spent in it.
local function fixed_window(stored, now, cost, limit, period, _, n)
  local elapsed = now % period
  local window = (now - elapsed) / period
  local spent, stepped_back = 0, false
  if stored then
    local w, s = string.match(stored, '^(%d+) (%d+)')
    if w then
      local passed = window - w
      -- a window of the future is this one, after a clock that stepped back; that is written down
      -- even if nothing is spent, or else it would go on to be this one
      if passed <= 0 then
        spent, stepped_back = math.min(s, limit), passed < 0
      end
    end
  end

  local allowed = cost <= limit - spent
  if not allowed then
    cost = 0
  elseif cost < 0 then
    -- no more comes back than was spent
    cost = math.max(cost, -spent)
  elseif n then
    cost = cost * math.min(n, math.floor((limit - spent) / cost))
  end
  spent = spent + cost
  if cost == 0 and not (stepped_back and spent > 0) then
    return allowed
  end

  -- -a % b is what is missing from a to a multiple of b
  local reset = spent > 0 and period - elapsed or 0
  return allowed, string.format('%d %d', window, spent), (reset + -reset % 1000) / 1000
end
