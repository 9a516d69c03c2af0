-- Token bucket that is refilled at intervals: see interval_bucket.rs.
-- Stored: "<tokens> <micros>", the tokens and the time of the last refill.
-- count tokens come each period microseconds.
local function interval_bucket(stored, now, cost, limit, period, count)
  local tokens, last, stepped_back = limit, now, false
  if stored then
    local t, m = string.match(stored, '^(%d+) (%d+)')
    if t then
      tokens, last = tonumber(t), tonumber(m)
      if last > now then
        -- written down even if nothing is spent, or else the bucket would not refill until the
        -- clock has caught up
        last, stepped_back = now, true
      end
      local refills = math.floor((now - last) / period)
      tokens = tokens + refills * count
      if tokens >= limit then
        tokens, last = limit, now
      else
        last = last + refills * period
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
    allowed = 0
    if cost > limit then
      retry = -1
    else
      retry = last + math.ceil((cost - tokens) / count) * period - now
    end
  end

  local reset = 0
  if tokens < limit then
    reset = last + math.ceil((limit - tokens) / count) * period - now
  end
  if (allowed == 0 or cost == 0) and not (stepped_back and reset > 0) then
    return allowed, tokens, reset, retry
  end
  return allowed, tokens, reset, retry, string.format('%d %d', tokens, last),
    math.ceil(reset / 1000)
end
