-- Token bucket that is refilled at intervals: see interval_bucket.rs, and for what it shares bucket.lua.
-- State: the tokens, and the time of the last refill in microseconds.
-- count tokens come each period microseconds.

--- terms

--- full
tokens, last = limit, now

--- refill
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
  $full
else
  last = last + periods
end

--- give_back_late
if since < last then
  -- refills may have brought it back: they are a period apart at least
  local elapsed = last - since
  cost = math.min(0, cost + (elapsed + -elapsed % period) / period * count)
end
cost = math.max(cost, tokens - most)
if cost < 0 then
  -- the bucket may have been full: the next refill comes a period after the next request
  last = now
end

--- expiry
-- -a % b is what is missing from a to a multiple of b
expiry = last + (missing + -missing % count) / count * period

--- correct
since = now
if lowest and lowest <= -cost then
  -- without the charge it would have been full at the lowest step, and refilled a period after that
  local elapsed = math.max(0, now - struct.unpack('<L', stored, 9)) % period
  local refills = math.ceil(math.max(0, now - elapsed - lowest_at) / period)
  local later = refills - math.floor(math.max(0, now - lowest_at) / period)
  cost = math.min(0, math.max(0, later) * count - lowest)
  if elapsed > 0 then
    since = now - 1
  end
end
back = -cost

--- missing
local shortfall = missing - spent

--- computed
function(tokens, last, _, now)
  if last < now then
    return tokens, last, 0
  end
end
