-- Sliding window counter: see sliding_window.rs.
-- Stored: "<window> <current> <previous>": the number of this window, what was spent in it, and
-- what was spent in the one before.
-- A window is period units of count microseconds.
local function sliding_window(stored, now, cost, limit, period, count, n)
  local beyond = now % count
  now = (now - beyond) / count
  local elapsed = now % period
  local window = (now - elapsed) / period
  local rest = period - elapsed
  local current, previous, stepped_back = 0, 0, false
  if stored then
    local w, c, p = string.match(stored, '^(%d+) (%d+) (%d+)$')
    if w then
      local passed = window - w
      if passed <= 0 then
        -- a window of the future is this one, after a clock that stepped back; that is written
        -- down even if nothing is spent, or else it would go on to be this one
        current, previous = math.min(c, limit), math.min(p, limit)
        stepped_back = passed < 0
      elseif passed == 1 then
        previous = math.min(c, limit)
      end
    end
  end

  local weighted = math.floor(previous * rest / period)
  local remaining = math.max(0, limit - current - weighted)
  local allowed = cost <= remaining
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
  if cost == 0 and not (stepped_back and current + previous > 0) then
    return allowed
  end

  -- Until so little is left of a window that nothing of it counts: units that, times what was
  -- spent, are less than a period. -a % b is what is missing from a to a multiple of b.
  local reset = 0
  if current > 0 then
    reset = (rest + period - (period + -period % current) / current + 1) * count - beyond
  elseif previous > 0 then
    reset = (rest - (period + -period % previous) / previous + 1) * count - beyond
  end
  return allowed, string.format('%d %d %d', window, current, previous),
    (reset + -reset % 1000) / 1000
end
