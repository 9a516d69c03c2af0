-- Token bucket that is refilled at intervals: see interval_bucket.rs.
-- State: the tokens, and the time of the last refill in microseconds.
-- count tokens come each period microseconds. With a debt the bucket is below empty.
local stepped_back = false
if not tokens then
  tokens, last = limit, now
else
  tokens, debt = tokens - debt, 0
  if last > now then
    -- written down even if nothing is spent, or else the bucket would not refill until the clock
    -- has caught up
    tokens, last, stepped_back = math.min(tokens, most), now, true
  elseif floors then
    for i = 1, #floors do
      local at, most = floors[i][1], floors[i][2]
      if tokens + math.floor(math.max(0, at - last) / period) * count >= most then
        tokens, last = most, at
      end
    end
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

allowed = cost <= 0 or cost <= tokens
if not allowed then
  cost = since and since > 0 and math.min(cost, tokens + 10 * limit) or 0
elseif cost < 0 then
  local is_late = since and since > 0 and since < now
  if is_late then
    cost = math.max(cost, -limit)
  end
  if is_late and since < last then
    -- refills may have brought it back: they are a period apart at least
    local elapsed = last - since
    cost = math.min(0, cost + (elapsed + -elapsed % period) / period * count)
  end
  -- no more comes back than is missing
  cost = math.max(cost, math.min(0, tokens - most))
  if is_late and cost < 0 then
    -- the bucket may have been full: the next refill comes a period after the next request
    last = now
  end
elseif n and cost > 0 then
  cost = cost * math.min(n, math.floor(tokens / cost))
end
tokens = tokens - cost
local missing = limit - tokens
remaining = tokens
changed = cost ~= 0 or (stepped_back and missing > 0)
if tokens < 0 then
  tokens, debt = 0, -tokens
end
if changed or block then
  -- -a % b is what is missing from a to a multiple of b
  expiry = last + (missing + -missing % count) / count * period
end
