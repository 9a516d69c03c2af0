-- Token bucket that is refilled at intervals: see interval_bucket.rs.
-- Stored: "<tokens> <micros>", the tokens and the time of the last refill.
-- count tokens come each period microseconds.
local function interval_bucket(stored, now, cost, limit, period, count, n)
  local tokens, last, stepped_back = limit, now, false
  if stored then
    local t, m = string.match(stored, '^(%d+) (%d+)')
    if t then
      tokens, last = t + 0, m + 0
      if last > now then
        -- written down even if nothing is spent, or else the bucket would not refill until the
        -- clock has caught up
        last, stepped_back = now, true
      end
      local elapsed = now - last
      local periods = elapsed - elapsed % period
      tokens = tokens + periods / period * count
      if tokens >= limit then
        tokens, last = limit, now
      else
        last = last + periods
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

  -- -a % b is what is missing from a to a multiple of b
  local reset = last - now + (missing + -missing % count) / count * period
  return allowed, string.format('%d %d', tokens, last), (reset + -reset % 1000) / 1000
end
