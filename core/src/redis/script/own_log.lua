-- The quota that a client has of its own, where a log is kept: see overrides.rs.

-- The quota that a head has, of the limit that the last call was about; nil for none.
local found

-- How much the entries of a list that count at a moment have spent.
local function spent_of(key, at, period, heads)
  local function entry(index)
    local time, total, spent = string.match(redis.call('LINDEX', key, index), '^(%d+) (%d+) (%d+)$')
    return tonumber(time), tonumber(total), tonumber(spent)
  end
  local low, count = heads, redis.call('LLEN', key)
  local high = count
  while low < high do
    local middle = math.floor((low + high) / 2)
    local time = entry(middle)
    if not time or time + period > at then
      high = middle
    else
      low = middle + 1
    end
  end
  if low == count then
    return 0
  end
  local _, total, spent = entry(low)
  local _, last = entry(-1)
  return last and total and last - total + spent or 0
end

-- The debt at a moment, and since when it is owed: a limit of it is forgotten each period.
local function owed(debt, since, at, limit, period)
  debt, since = math.min(debt, $max_debt * limit), math.min(since, at)
  local periods = math.max(0, math.floor((at - since) / period) - 1)
  if periods > 0 then
    debt, since = math.max(0, debt - periods * limit), since + periods * period
  end
  return debt, since
end

-- Writes a head, if there is anything to be written.
local function push_head(key, at, debt, since, blocked_until, own)
  local blocked = blocked_until > at and blocked_until or 0
  if debt > 0 or blocked > 0 or own then
    redis.call('LPUSH', key, string.format('x %d %d %d', debt, since, blocked) .. (own and own.text or ''))
  end
end

-- Keeps a list of which nothing counts from a moment on, but a quota without an end.
local function expire_log(key, now, whole_at, own)
  if not own or own[3] > 0 then
    -- some servers take no -0
    redis.call('PEXPIRE', key, math.max(1, math.ceil((now % 1000 + whole_at - now) / 1000)))
  end
end

-- From a moment on another quota counts: as much is spent and owed. The entries of a log of the same period stay as they are.
local function carry_log_over(key, now, at, limit, period, debt, since, blocked_until, heads, to_limit, to_period, own)
  debt, since = owed(debt, since, at, limit, period)
  if period == to_period then
    if heads == 1 then
      redis.call('LPOP', key)
    end
  else
    local spent = spent_of(key, at, period, heads)
    debt = debt + math.max(0, spent - to_limit)
    spent = math.min(spent, to_limit)
    local more = math.min(debt, to_limit - spent)
    debt = math.min(debt - more, $max_debt * to_limit)
    since = debt > 0 and at or 0
    redis.call('DEL', key)
    if spent > 0 then
      redis.call('RPUSH', key, string.format('%d %d %d', at, spent, spent))
    end
    if more > 0 then
      redis.call('RPUSH', key, string.format('%d %d %d', at, spent + more, more))
    end
  end
  push_head(key, at, debt, since, blocked_until, own)
  expire_log(key, now, math.max(blocked_until, at + 12 * to_period), own)
end

-- Adds what a client has of its own to the answer about a limit.
local function answer_own(answer)
  if found then
    answer[5], answer[6], answer[7], answer[8] = found[1], found[3], found[4], found[5]
  end
end

-- Keeps a list, which is whole after `reset`, for as long as any of it counts. `line` is the quota of the line, where the
-- other one counts.
local function keep_log(key, now, reset, debt, heads, own, line)
  if own and own[3] == 0 or redis.call('LLEN', key) == 0 then
    return
  end
  local expiry = math.max(now + reset, now + 1)
  if line and own and expiry > own[3] then
    -- what is more than the limit of the line is owed then; a limit that was lowered may have more spent
    local spent = math.max(own[1], spent_of(key, now, own[2], heads))
    local periods = math.min(12, math.ceil((debt + spent) / line[1]) + 1)
    expiry = math.max(expiry, own[3] + periods * line[2])
  elseif own then
    expiry = math.max(expiry, own[3])
  end
  expire_log(key, now, expiry, own)
end
