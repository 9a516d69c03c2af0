-- Generic cell rate algorithm: see gcra.rs.
-- Stored: "<micros>", or "<micros> <part>": the theoretical arrival time, micros + part / count.
-- The emission interval is period / count microseconds.
local function gcra(stored, now, cost, limit, period, count, n)
  local rest = period % count
  local whole = (period - rest) / count
  -- times are spans from now: how far the arrival time is ahead, and how far it may be
  local ahead, part, changed = 0, 0, false
  local latest_part = limit * rest % count
  local latest = limit * whole + (limit * rest - latest_part) / count

  if stored then
    local t, p = string.match(stored, '^(%d+) ?(%d*)$')
    if t then
      ahead = t - now
      if ahead < 0 then
        ahead = 0
      else
        if p ~= '' then
          part = math.min(p, count - 1)
        end
        if ahead > latest or (ahead == latest and part > latest_part) then
          -- the clock stepped back, or the limit was lowered: written down even if nothing is
          -- spent, or else it would never pass
          ahead, part, changed = latest, latest_part, true
        end
      end
    end
  end

  if n and cost > 0 then
    local parts = (latest - ahead) * count
    local most = math.floor((parts + latest_part - part) / period)
    if parts + count >= 2^53 then
      -- the product was rounded, which may be one too many or too few
      local function is_beyond(n)
        local parts = part + n * rest
        local next, next_part = ahead + n * whole + math.floor(parts / count), parts % count
        return next > latest or (next == latest and next_part > latest_part)
      end
      if is_beyond(most) then
        most = most - 1
      elseif not is_beyond(most + 1) then
        most = most + 1
      end
    end
    cost = cost * math.min(n, math.floor(most / cost))
  end

  local allowed = true
  if cost > 0 or (cost < 0 and (ahead > 0 or part > 0)) then
    local parts = part + cost * rest
    local next_part = parts % count
    local next = ahead + cost * whole + (parts - next_part) / count
    if next < 0 then
      -- no more comes back than was spent
      ahead, part, changed = 0, 0, true
    elseif next > latest or (next == latest and next_part > latest_part) then
      allowed = false
    else
      ahead, part, changed = next, next_part, true
    end
  end
  if not changed then
    return allowed
  end

  local new
  if part == 0 then
    new = string.format('%d', now + ahead)
  else
    new = string.format('%d %d', now + ahead, part)
    ahead = ahead + 1
  end
  -- -a % b is what is missing from a to a multiple of b
  return allowed, new, (ahead + -ahead % 1000) / 1000
end
