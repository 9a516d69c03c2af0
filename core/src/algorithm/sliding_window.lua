-- Sliding window counter: see sliding_window.rs.
-- Stored: "<window> <current> <previous>": the number of this window, what was spent in it, and
-- what was spent in the one before.
-- A window is period units of count microseconds.
local function sliding_window(stored, now, cost, limit, period, count)
  local floor, min = math.floor, math.min
  local beyond = now % count
  now = (now - beyond) / count
  local elapsed = now % period
  local window = (now - elapsed) / period
  local current, previous, stepped_back = 0, 0, false
  if stored then
    local w, c, p = string.match(stored, '^(%d+) (%d+) (%d+)$')
    if w then
      local passed = window - tonumber(w)
      if passed <= 0 then
        -- a window of the future is this one, after a clock that stepped back; that is written
        -- down even if nothing is spent, or else it would go on to be this one
        current, previous = min(tonumber(c), limit), min(tonumber(p), limit)
        stepped_back = passed < 0
      elseif passed == 1 then
        previous = min(tonumber(c), limit)
      end
    end
  end

  local rest = period - elapsed
  local remaining = math.max(0, limit - current - math.ceil(previous * rest / period))
  local allowed, retry = 1, 0
  if cost <= remaining then
    current, remaining = current + cost, remaining - cost
  else
    allowed = 0
    if cost > limit then
      retry = -1
    elseif cost + current <= limit then
      -- later in this window, when less of the previous one counts
      local at = period - floor((limit - current - cost) * period / previous)
      retry = (at - elapsed) * count - beyond
    else
      -- in the next window, of which this one is the previous
      local at = period - min(floor((limit - cost) * period / current), period)
      retry = (rest + at) * count - beyond
    end
  end

  local reset = 0
  if current > 0 then
    reset = (rest + period) * count - beyond
  elseif previous > 0 then
    reset = rest * count - beyond
  end
  if (allowed == 0 or cost == 0) and not (stepped_back and reset > 0) then
    return allowed, remaining, reset, retry
  end
  return allowed, remaining, reset, retry, string.format('%d %d %d', window, current, previous),
    math.ceil(reset / 1000)
end
