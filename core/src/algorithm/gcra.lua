-- Generic cell rate algorithm: see gcra.rs.
-- Stored: "<micros>", or "<micros> <part>": the theoretical arrival time, micros + part / count.
-- The emission interval is period / count microseconds.
local function gcra(stored, now, cost, limit, period, count, n)
  local floor, min = math.floor, math.min
  local rest = period % count
  local whole = (period - rest) / count
  -- times are spans from now: how far the arrival time is ahead, and how far it may be
  local ahead, part, changed = 0, 0, false
  local latest, latest_part = limit * whole + floor(limit * rest / count), limit * rest % count

  if stored then
    local t, p = string.match(stored, '^(%d+) ?(%d*)$')
    if t then
      ahead = t - now
      if ahead < 0 then
        ahead = 0
      else
        if p ~= '' then
          part = min(p, count - 1)
        end
        if ahead > latest or (ahead == latest and part > latest_part) then
          -- the clock stepped back, or the limit was lowered: written down even if nothing is
          -- spent, or else it would never pass
          ahead, part, changed = latest, latest_part, true
        end
      end
    end
  end

  -- the arrival time after so much more, and whether it is too far ahead
  local function after(more)
    local parts = part + more * rest
    local next, next_part = ahead + more * whole + floor(parts / count), parts % count
    return next, next_part, next > latest or (next == latest and next_part > latest_part)
  end

  if n and cost > 0 then
    local most = floor(((latest - ahead) * count + latest_part - part) / period)
    -- a product beyond 2^53 is rounded, which may be one too many or too few
    if select(3, after(most)) then
      most = most - 1
    elseif not select(3, after(most + 1)) then
      most = most + 1
    end
    cost = cost * min(n, floor(most / cost))
  end
  local allowed = cost <= limit
  if cost > 0 and allowed then
    local next, next_part, beyond = after(cost)
    if beyond then
      allowed = false
    else
      ahead, part, changed = next, next_part, true
    end
  elseif cost < 0 and (ahead > 0 or part > 0) then
    -- no more comes back than was spent
    ahead, part = after(math.max(cost, -limit))
    if ahead < 0 then
      ahead, part = 0, 0
    end
    changed = true
  end

  if not changed then
    return allowed
  end
  local reset = part > 0 and ahead + 1 or ahead
  if part == 0 then
    return allowed, string.format('%d', now + ahead), math.ceil(reset / 1000)
  end
  return allowed, string.format('%d %d', now + ahead, part), math.ceil(reset / 1000)
end
