-- Token bucket that is refilled at intervals: see interval_bucket.rs.
-- Stored: "<tokens> <micros>", the tokens and the time of the last refill.
-- count tokens come each period microseconds.
local function interval_bucket(stored, now, cost, limit, period, count, n)
  local floor, ceil = math.floor, math.ceil
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
      local refills = floor((now - last) / period)
      tokens = tokens + refills * count
      if tokens >= limit then
        tokens, last = limit, now
      else
        last = last + refills * period
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
  if cost == 0 and not (stepped_back and tokens < limit) then
    return allowed
  end
  local reset = last + ceil((limit - tokens) / count) * period - now
  return allowed, string.format('%d %d', tokens, last), ceil(reset / 1000)
end
