-- Token bucket with continuous refill: see token_bucket.rs, and for what it shares bucket.lua.
-- State: the whole tokens, and the moment of the last refill, last + part / count microseconds.
-- A token comes each period / count microseconds.

--- terms
local rest, whole = 0, period
if count > 1 then
  rest = period % count
  whole = (period - rest) / count
end

--- full
tokens, last, part = limit, now, 0

--- refill
if part >= count then
  part = count - 1
end
if last > now or (last == now and part > 0) then
  -- written down even if nothing is spent, or else the bucket would not refill until the clock
  -- has caught up
  tokens, last, part, stepped_back = math.min(tokens, most), now, 0, true
else
  if floors then
    for i = 1, #floors do
      local at, most = floors[i][1], floors[i][2]
      local n = most - tokens
      if n <= 0 or last + n * whole + math.ceil((part + n * rest) / count) <= at then
        tokens, last, part = most, at, 0
      end
    end
  end
  local parts = (now - last) * count
  local gained = (parts - part) / period
  gained = gained - gained % 1
  if parts >= 2^53 and gained <= limit - tokens then
    -- the product was rounded, which may be a token too many or too few
    local function is_due(n)
      return last + n * whole + math.ceil((part + n * rest) / count) <= now
    end
    if not is_due(gained) then
      gained = gained - 1
    elseif is_due(gained + 1) then
      gained = gained + 1
    end
  end
  if tokens + gained >= limit then
    $full
  elseif gained > 0 then
    tokens, parts = tokens + gained, part + gained * rest
    part = parts % count
    last = last + gained * whole + (parts - part) / count
  end
end

--- give_back_late
local late = now - since
if whole > 0 then
  -- those that cannot have been regained since come back at once
  local others = math.min(-cost, (late + -late % whole) / whole)
  moved = others < -cost
  tokens, cost = math.min(limit, tokens - cost - others), -others
end
-- for the others the next tokens are due sooner, less the time since
local parts = part + cost * rest
local earlier_part = parts % count
local earlier = last + cost * whole + (parts - earlier_part) / count
if earlier < 0 then
  earlier, earlier_part = 0, 0
end
earlier = earlier + late
if earlier < last or (earlier == last and earlier_part < part) then
  last, part, moved = earlier, earlier_part, true
end
local n = most - tokens
if most < limit and last + n * whole + math.ceil((part + n * rest) / count) <= now then
  -- no further than to what machines have set aside
  tokens, last, part, moved = most, now, 0, true
end
cost = 0

--- expiry
local parts = part + missing * rest
-- -a % b is what is missing from a to a multiple of b
expiry = last + missing * whole + (parts + -parts % count) / count

--- missing
local parts = part + (missing - spent) * rest
local shortfall = last - now + (missing - spent) * whole + (parts - parts % count) / count

--- computed
function(tokens, last, part, now, period, count)
  if last < now then
    return tokens, last, part
  end
  -- the machine's clock is ahead: the bucket is without the tokens that are still to come
  part = math.min(part, count - 1)
  local parts = (last - now) * count + part
  local early = (parts - parts % period) / period + 1
  local span = early * period
  if parts + period >= 2 ^ 53 or tokens < early then
    return
  end
  tokens, last, part = tokens - early, last - (span - span % count) / count, part - span % count
  if part < 0 then
    last, part = last - 1, part + count
  end
  return tokens, last, part
end
