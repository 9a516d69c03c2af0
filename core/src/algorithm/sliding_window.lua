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

  -- the most that may be left of a window for no more than most of what was spent in the one
  -- before to count
  local function left(spent, most)
    return math.ceil((most + 1) * period / spent) - 1
  end

  local rest = period - elapsed
  local weighted = floor(previous * rest / period)
  if weighted == 0 then
    previous = 0
  end
  local remaining = math.max(0, limit - current - weighted)
  local allowed, retry = 1, 0
  if cost < 0 then
    -- no more comes back than was spent: of this window first, then of the previous one
    cost = math.max(cost, -current - previous)
    current, previous = math.max(0, current + cost), min(previous, previous + current + cost)
    weighted = floor(previous * rest / period)
    if weighted == 0 then
      previous = 0
    end
    remaining = math.max(0, limit - current - weighted)
  elseif cost <= remaining then
    current, remaining = current + cost, remaining - cost
  else
    allowed = 0
    if cost > limit then
      retry = -1
    elseif cost + current <= limit then
      -- later in this window, when less of the previous one counts
      retry = (rest - left(previous, limit - current - cost)) * count - beyond
    else
      -- in the next window, of which this one is the previous
      retry = (rest + period - left(current, limit - cost)) * count - beyond
    end
  end

  local reset = 0
  if current > 0 then
    reset = (rest + period - left(current, 0)) * count - beyond
  elseif previous > 0 then
    reset = (rest - left(previous, 0)) * count - beyond
  end
  if (allowed == 0 or cost == 0) and not (stepped_back and reset > 0) then
    return allowed, remaining, reset, retry
  end
  return allowed, remaining, reset, retry, string.format('%d %d %d', window, current, previous),
    math.ceil(reset / 1000)
end
