-- Sliding log: see sliding_log.rs.
-- Stored: a list of "<micros> <total> <cost>", in order of time; total counts all that was ever
-- written to this list, the entry included.
-- It reads and writes the list itself: it gets the key, and answers what writes to it.
local function sliding_log(key, now, cost, limit, period)
  local function entry(index)
    local text = redis.call('LINDEX', key, index)
    if not text then
      return nil
    end
    local time, total, spent = string.match(text, '^(%d+) (%d+) (%d+)$')
    if not time then
      return false
    end
    return tonumber(time), tonumber(total), tonumber(spent)
  end

  -- the first of length entries for which reached(time, total) holds
  local function search(length, reached)
    local low, high = 0, length
    while low < high do
      local middle = math.floor((low + high) / 2)
      if reached(entry(middle)) then
        high = middle
      else
        low = middle + 1
      end
    end
    return low
  end

  local function write(time, total, spent)
    redis.call('RPUSH', key, string.format('%d %d %d', time, total, spent))
    redis.call('PEXPIRE', key, math.ceil((time + period - now) / 1000))
  end

  -- how many entries are to be forgotten, the first one that is not, and the last one
  local forgotten, spent, total = 0, 0, 0
  local first_time, first_total, first_spent = entry(0)
  local last_time
  if first_time then
    last_time, total = entry(-1)
    spent = total - first_total + first_spent
    if last_time > now then
      -- The clock stepped back, and nothing would be forgotten until it has caught up: all that
      -- is in the log counts as spent now. That is written down even if nothing is spent.
      redis.call('DEL', key)
      write(now, spent, spent)
      first_time, first_total, first_spent = now, spent, spent
      last_time, total = now, spent
    elseif last_time + period <= now then
      forgotten, spent, total = -1, 0, 0
    elseif first_time + period <= now then
      forgotten = search(redis.call('LLEN', key), function(time)
        return time + period > now
      end)
      first_time, first_total, first_spent = entry(forgotten)
      spent = total - first_total + first_spent
    end
  elseif first_time == false then
    -- somebody else's list
    forgotten = -1
  end

  if cost < 0 then
    -- no more comes back than was spent
    cost = math.max(cost, -spent)
  end
  if cost < 0 then
    -- off the newest entries; the last of those that stay may keep a part of what it was
    spent, total = spent + cost, total + cost
    local newest, part, reset = forgotten, 0, 0
    if spent > 0 then
      newest = search(redis.call('LLEN', key), function(_, reached)
        return reached >= total
      end)
      local time, reached, whole = entry(newest)
      last_time, part, reset = time, whole - (reached - total), time + period - now
    end
    return 1, math.max(0, limit - spent), reset, 0, function()
      if newest > forgotten then
        redis.call('LTRIM', key, forgotten, newest - 1)
      else
        redis.call('DEL', key)
      end
      if spent > 0 then
        write(last_time, total, part)
      end
    end
  end

  local remaining = math.max(0, limit - spent)
  local allowed, retry = 1, 0
  if cost <= remaining then
    remaining = remaining - cost
    spent = spent + cost
    if cost > 0 then
      last_time = now
    end
  else
    allowed = 0
    if cost > limit then
      retry = -1
    else
      -- until entries worth so much have been forgotten
      local needed = first_total - first_spent + spent + cost - limit
      if first_total < needed then
        first_time = entry(search(redis.call('LLEN', key), function(_, reached)
          return reached >= needed
        end))
      end
      retry = first_time + period - now
    end
  end

  local reset = 0
  if spent > 0 then
    reset = last_time + period - now
  end
  if allowed == 0 or cost == 0 then
    return allowed, remaining, reset, retry
  end
  return allowed, remaining, reset, retry, function()
    if forgotten == -1 then
      redis.call('DEL', key)
    elseif forgotten > 0 then
      redis.call('LTRIM', key, forgotten, -1)
    end
    write(now, total + cost, cost)
  end
end
