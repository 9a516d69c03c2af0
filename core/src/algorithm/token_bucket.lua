-- Token bucket with continuous refill: see token_bucket.rs.
-- Stored: "<tokens> <micros>", or "<tokens> <micros> <part>": the whole tokens, and the moment of
-- the last refill, micros + part / count. A token comes each period / count microseconds.
local function token_bucket(stored, now, cost, limit, period, count, n)
  local floor, ceil = math.floor, math.ceil
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
        local gained = floor((parts - part) / period)
        if parts >= 2^53 and gained <= limit then
          -- the product was rounded, which may be a token too many or too few
          local function is_due(n)
            return last + n * whole + ceil((part + n * rest) / count) <= now
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
          tokens = tokens + gained
          part = part + gained * rest
          last = last + gained * whole + floor(part / count)
          part = part % count
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
    cost = cost * math.min(n, floor(tokens / cost))
  end
  tokens = tokens - cost
  local missing = limit - tokens
  if cost == 0 and not (stepped_back and missing > 0) then
    return allowed
  end
  local reset = last - now + missing * whole + ceil((part + missing * rest) / count)
  if part == 0 then
    return allowed, string.format('%d %d', tokens, last), ceil(reset / 1000)
  end
  return allowed, string.format('%d %d %d', tokens, last, part), ceil(reset / 1000)
end
