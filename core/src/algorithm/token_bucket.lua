-- Token bucket with continuous refill: see token_bucket.rs.
-- Stored: "<tokens> <micros>", or "<tokens> <micros> <part>": the whole tokens, and the moment of
-- the last refill, micros + part / count. A token comes each period / count microseconds.
local function token_bucket(stored, now, cost, limit, period, count)
  local floor = math.floor
  local rest = period % count
  local whole = (period - rest) / count
  local tokens, last, part, stepped_back = limit, now, 0, false
  if stored then
    local t, m, p = string.match(stored, '^(%d+) (%d+) ?(%d*)$')
    if t then
      tokens, last, part = tonumber(t), tonumber(m), tonumber(p) or 0
      if last > now then
        -- written down even if nothing is spent, or else the bucket would not refill until the
        -- clock has caught up
        tokens, last, part, stepped_back = math.min(tokens, limit), now, 0, true
      else
        part = math.min(part, count - 1)
        local gained = math.max(0, floor(((now - last) * count - part) / period))
        if tokens + gained >= limit then
          tokens, last, part = limit, now, 0
        else
          tokens = tokens + gained
          part = part + gained * rest
          last = last + gained * whole + floor(part / count)
          part = part % count
        end
      end
    end
  end

  local allowed, retry = 1, 0
  if cost <= tokens then
    tokens = tokens - cost
  else
    allowed = 0
    if cost > limit then
      retry = -1
    else
      local more = cost - tokens
      retry = last + more * whole + math.ceil((part + more * rest) / count) - now
    end
  end

  local missing, reset = limit - tokens, 0
  if missing > 0 then
    reset = last + missing * whole + math.ceil((part + missing * rest) / count) - now
  end
  if (allowed == 0 or cost == 0) and not (stepped_back and reset > 0) then
    return allowed, tokens, reset, retry
  end
  local new
  if part == 0 then
    new = string.format('%d %d', tokens, last)
  else
    new = string.format('%d %d %d', tokens, last, part)
  end
  return allowed, tokens, reset, retry, new, math.ceil(reset / 1000)
end
