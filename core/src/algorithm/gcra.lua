-- Generic cell rate algorithm: see gcra.rs.
-- Stored: "<micros>", or "<micros> <part>": the theoretical arrival time, micros + part / count.
-- The emission interval is period / count microseconds.
local function gcra(stored, now, cost, limit, period, count)
  local floor = math.floor
  local rest = period % count
  local whole = (period - rest) / count
  -- times are spans from now: how far the arrival time is ahead, and how far it may be
  local latest_part = limit * rest
  local latest = limit * whole + floor(latest_part / count)
  latest_part = latest_part % count
  local ahead, part, corrected = 0, 0, false
  if stored then
    local t, p = string.match(stored, '^(%d+) ?(%d*)$')
    if t then
      ahead, part = tonumber(t) - now, math.min(tonumber(p) or 0, count - 1)
      if ahead < 0 then
        ahead, part = 0, 0
      elseif ahead > latest or (ahead == latest and part > latest_part) then
        -- the clock stepped back, or the limit was lowered: written down even if nothing is
        -- spent, or else it would never pass
        ahead, part, corrected = latest, latest_part, true
      end
    end
  end

  local allowed, retry = 1, 0
  if cost > limit then
    allowed, retry = 0, -1
  elseif cost > 0 then
    local next_part = part + cost * rest
    local next = ahead + cost * whole + floor(next_part / count)
    next_part = next_part % count
    if next < latest or (next == latest and next_part <= latest_part) then
      ahead, part = next, next_part
    else
      allowed, retry = 0, next - latest
      if next_part > latest_part then
        retry = retry + 1
      end
    end
  end

  local remaining = floor(((latest - ahead) * count + latest_part - part) / period)
  local reset = ahead
  if part > 0 then
    reset = reset + 1
  end
  if (allowed == 0 or cost == 0) and not corrected then
    return allowed, remaining, reset, retry
  end
  local new
  if part == 0 then
    new = string.format('%d', now + ahead)
  else
    new = string.format('%d %d', now + ahead, part)
  end
  return allowed, remaining, reset, retry, new, math.ceil(reset / 1000)
end
