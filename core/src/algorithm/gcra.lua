-- Generic cell rate algorithm: see gcra.rs.
-- Stored: "<micros>", or "<micros> <part>": the theoretical arrival time, micros + part / count.
-- The emission interval is period / count microseconds.
local function gcra(stored, now, cost, limit, period, count)
  local floor = math.floor
  local rest = period % count
  local whole = (period - rest) / count
  -- times are spans from now: how far the arrival time is ahead, and how far it may be
  local ahead, part, changed = 0, 0, false
  local latest, latest_part = limit * whole + floor(limit * rest / count), limit * rest % count

  -- the arrival time after n more, and whether it is too far ahead
  local function after(n)
    local parts = part + n * rest
    local next, next_part = ahead + n * whole + floor(parts / count), parts % count
    return next, next_part, next > latest or (next == latest and next_part > latest_part)
  end

  if stored then
    local t, p = string.match(stored, '^(%d+) ?(%d*)$')
    if t then
      ahead, part = tonumber(t) - now, math.min(tonumber(p) or 0, count - 1)
      if ahead < 0 then
        ahead, part = 0, 0
      elseif ahead > latest or (ahead == latest and part > latest_part) then
        -- the clock stepped back, or the limit was lowered: written down even if nothing is
        -- spent, or else it would never pass
        ahead, part, changed = latest, latest_part, true
      end
    end
  end

  local allowed, retry = 1, 0
  if cost > limit then
    allowed, retry = 0, -1
  elseif cost > 0 then
    local next, next_part, beyond = after(cost)
    if beyond then
      allowed, retry = 0, next - latest
      if next_part > latest_part then
        retry = retry + 1
      end
    else
      ahead, part = next, next_part
    end
  elseif cost < 0 and (ahead > 0 or part > 0) then
    -- no more comes back than was spent
    ahead, part = after(math.max(cost, -limit))
    if ahead < 0 then
      ahead, part = 0, 0
    end
    changed = true
  end

  local remaining = floor(((latest - ahead) * count + latest_part - part) / period)
  -- a product beyond 2^53 is rounded, which may be one too many or too few
  if select(3, after(remaining)) then
    remaining = remaining - 1
  elseif not select(3, after(remaining + 1)) then
    remaining = remaining + 1
  end
  local reset = ahead
  if part > 0 then
    reset = reset + 1
  end
  if (allowed == 0 or cost <= 0) and not changed then
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
