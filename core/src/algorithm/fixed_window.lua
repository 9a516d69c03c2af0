-- Fixed window: see fixed_window.rs.
-- Stored: "<window> <spent>": the number of the period, and what was spent in it.
local function fixed_window(stored, now, cost, limit, period)
  local elapsed = now % period
  local window = (now - elapsed) / period
  local spent, stepped_back = 0, false
  if stored then
    local w, s = string.match(stored, '^(%d+) (%d+)')
    -- a window of the future is this one, after a clock that stepped back; that is written down
    -- even if nothing is spent, or else it would go on to be this one
    if w and tonumber(w) >= window then
      spent, stepped_back = math.min(tonumber(s), limit), tonumber(w) > window
    end
  end

  if cost < 0 then
    -- no more comes back than was spent
    cost = math.max(cost, -spent)
  end
  local rest = period - elapsed
  local allowed, retry = 1, 0
  if cost <= limit - spent then
    spent = spent + cost
  else
    allowed, retry = 0, rest
    if cost > limit then
      retry = -1
    end
  end

  local reset = rest
  if spent == 0 then
    reset = 0
  end
  if (allowed == 0 or cost == 0) and not (stepped_back and reset > 0) then
    return allowed, limit - spent, reset, retry
  end
  return allowed, limit - spent, reset, retry, string.format('%d %d', window, spent),
    math.ceil(reset / 1000)
end
