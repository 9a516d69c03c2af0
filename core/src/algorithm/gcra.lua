-- Generic cell rate algorithm: see gcra.rs.
-- State: the theoretical arrival time, tat + part / count microseconds.
-- The emission interval is period / count microseconds. Other times are spans from now: how far
-- the arrival time is ahead, and how far it may be. With a debt it is further ahead.

--- decide
local rest, whole, latest, latest_part = 0, period, limit * period, 0
if count > 1 then
  rest = period % count
  whole = (period - rest) / count
  latest_part = limit * rest % count
  latest = limit * whole + (limit * rest - latest_part) / count
end

local ahead, least, least_part = 0, 0, 0
if not tat or tat < now then
  part, debt = 0, 0
else
  ahead = tat - now
  if part >= count then
    part = count - 1
  end
  local furthest, furthest_part = latest, latest_part
  if ahead < latest or (ahead == latest and part <= latest_part) then
    -- it was paid
    debt = 0
  elseif debt > 0 then
    furthest_part = (limit + debt) * rest % count
    furthest = (limit + debt) * whole + ((limit + debt) * rest - furthest_part) / count
  end
  if ahead > furthest or (ahead == furthest and part > furthest_part) then
    -- the clock stepped back, or the limit was lowered: written down even if nothing is spent, or
    -- else it would never pass
    ahead, part, changed = furthest, furthest_part, true
  end
end

if floors then
  for i = 1, #floors do
    local at, held = floors[i][1], limit - floors[i][2]
    least_part = held * rest % count
    least = at - now + held * whole + (held * rest - least_part) / count
    if ahead < least or (ahead == least and part < least_part) then
      ahead, part = least, least_part
    end
  end
  if most == limit then
    least, least_part = 0, 0
  end
end

if n and cost > 0 and not (since and since > 0) then
  local parts = (latest - ahead) * count
  remaining = math.max(0, math.floor((parts + latest_part - part) / period))
  if parts + count >= 2^53 then
    -- the product was rounded, which may be one too many or too few
    local function is_beyond(n)
      local parts = part + n * rest
      local next, next_part = ahead + n * whole + math.floor(parts / count), parts % count
      return next > latest or (next == latest and next_part > latest_part)
    end
    if is_beyond(remaining) then
      remaining = remaining - 1
    elseif not is_beyond(remaining + 1) then
      remaining = remaining + 1
    end
  end
  cost = cost * math.min(n, math.floor(remaining / cost))
  remaining = remaining - cost
end

local late = cost < 0 and since and since > 0 and math.max(0, now - since) or 0
allowed = true
if cost > 0 or (cost < 0 and (ahead > least or (ahead == least and part > least_part))) then
  local parts = part + cost * rest
  local next_part = parts % count
  local next = ahead + cost * whole + (parts - next_part) / count + late
  if cost < 0 and (next > ahead or (next == ahead and next_part >= part)) then
    -- all of it may have been regained since
  elseif next < least or (next == least and next_part < least_part) then
    -- no more comes back than was spent
    ahead, part, changed = least, least_part, true
  elseif cost < 0 or next < latest or (next == latest and next_part <= latest_part) then
    ahead, part, changed = next, next_part, true
  elseif since and since > 0 then
    local furthest_part = $max_spent * limit * rest % count
    local furthest = $max_spent * limit * whole + ($max_spent * limit * rest - furthest_part) / count
    debt = math.min(debt + cost, $max_debt * limit)
    if next > furthest or (next == furthest and next_part > furthest_part) then
      next, next_part = furthest, furthest_part
    end
    changed = changed or next ~= ahead or next_part ~= part
    ahead, part = next, next_part
  else
    allowed, cost = false, 0
  end
end
if (changed or touch) and (ahead < latest or (ahead == latest and part <= latest_part)) then
  debt = 0
end
if changed or block then
  tat = now + ahead
  expiry = part > 0 and tat + 1 or tat
end

--- missing
local parts = part - spent * rest
local shortfall = tat - now - spent * whole + (parts - parts % count) / count

--- computed
function(tat, part)
  return tat, part, 0
end

--- has_more
function(tat, part, _, _, other_tat, other_part)
  return tat < other_tat or tat == other_tat and part < other_part
end
