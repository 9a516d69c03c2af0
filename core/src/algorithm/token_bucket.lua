-- Token bucket with continuous refill: see token_bucket.rs.
-- Stored: "<tokens> <micros>", or "<tokens> <micros> <part>": the whole tokens, and the moment of
-- the last refill, micros + part / count. A token comes each period / count microseconds.
local function token_bucket(stored, now, cost, limit, period, count, n)
  local rest = period % count
  local whole = (period - rest) / count
  local tokens, last, part, stepped_back = limit, now, 0, false

  if stored then
    local t, m, p = string.match(stored, '^(%d+) (%d+) ?(%d*)$')
    if t then
      tokens, last = t + 0, m + 0
      if p ~= '' then
        part = math.min(p, count - 1)
      end
      if last > now or (last == now and part > 0) then
        -- written down even if nothing is spent, or else the bucket would not refill until the
        -- clock has caught up
        tokens, last, part, stepped_back = math.min(tokens, limit), now, 0, true
      else
        local parts = (now - last) * count
        local gained = math.floor((parts - part) / period)
        if parts >= 2^53 and gained <= limit then
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
          tokens, last, part = limit, now, 0
        elseif gained > 0 then
          tokens, parts = tokens + gained, part + gained * rest
          part = parts % count
          last = last + gained * whole + (parts - part) / count
        end
      end
    end
  end

  local allowed = cost <= tokens
  if not allowed then
    cost = 0
  elseif cost < 0 then
    -- no more comes back than is missing
    cost = math.max(cost, tokens - limit)
  elseif n then
    cost = cost * math.min(n, math.floor(tokens / cost))
  end
  tokens = tokens - cost
  local missing = limit - tokens
  if cost == 0 and not (stepped_back and missing > 0) then
    return allowed
  end

  local parts = part + missing * rest
  -- -a % b is what is missing from a to a multiple of b
  local reset = last - now + missing * whole + (parts + -parts % count) / count
  local new
  if part == 0 then
    new = string.format('%d %d', tokens, last)
  else
    new = string.format('%d %d %d', tokens, last, part)
  end
  return allowed, new, (reset + -reset % 1000) / 1000
end
