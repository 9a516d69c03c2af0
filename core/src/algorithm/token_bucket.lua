-- Token bucket with continuous refill: see token_bucket.rs.
-- Stored: "<tokens> <micros>", or "<tokens> <micros> <part>": the whole tokens, and the moment of
-- the last refill, micros + part / count. A token comes each period / count microseconds.
local function token_bucket(stored, now, cost, limit, period, count)
  local floor = math.floor
  local rest = period % count
  local whole = (period - rest) / count
  local tokens, last, part, stepped_back = limit, now, 0, false

  -- microseconds until the n-th token from the last refill on, rounded up
  local function wait(n)
    return last - now + n * whole + math.ceil((part + n * rest) / count)
  end

  if stored then
    local t, m, p = string.match(stored, '^(%d+) (%d+) ?(%d*)$')
    if t then
      tokens, last, part = tonumber(t), tonumber(m), math.min(tonumber(p) or 0, count - 1)
      if last > now or (last == now and part > 0) then
        -- written down even if nothing is spent, or else the bucket would not refill until the
        -- clock has caught up
        tokens, last, part, stepped_back = math.min(tokens, limit), now, 0, true
      else
        local gained = floor(((now - last) * count - part) / period)
        -- a product beyond 2^53 is rounded, which may be a token too many or too few
        if gained > limit then
          gained = limit
        elseif wait(gained) > 0 then
          gained = gained - 1
        elseif wait(gained + 1) <= 0 then
          gained = gained + 1
        end
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

  if cost < 0 then
    -- no more comes back than is missing
    cost = math.max(cost, tokens - limit)
  end
  local allowed, retry = 1, 0
  if cost <= tokens then
    tokens = tokens - cost
  else
    allowed, retry = 0, cost > limit and -1 or wait(cost - tokens)
  end
  local reset = tokens < limit and wait(limit - tokens) or 0
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
