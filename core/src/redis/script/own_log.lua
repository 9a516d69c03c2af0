-- The quota that a client has of its own, where a log is kept: see overrides.rs. It stands in the head of the list, behind
-- the block: its limit, its period, its end or 0, and the two numbers of its rate.

-- The quota that a head has, of the limit that the last call was about; nil for none.
local found

local function own_of(text)
  local limit, period, ends, n, rate_period = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not limit then
    return nil
  end
  local own = {limit + 0, period + 0, ends + 0, n + 0, rate_period + 0, text = ' ' .. text}
  if math.min(own[1], own[2]) < 1 or math.max(own[1], own[2], own[3]) > 2 ^ 53 then
    return nil
  end
  return own
end

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

-- What is owed at a moment, and since when: of the debt a limit is forgotten each period.
local function owed(debt, since, at, limit, period)
  debt, since = math.min(debt, 10 * limit), math.min(since, at)
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

-- From a moment on another quota counts: as much is spent and owed. The entries of a log of the same period stay as they are.
local function carry_log_over(key, at, limit, period, debt, since, blocked_until, heads, to_limit, to_period, own)
  -- of what is left nothing counts later
  local expiry = math.ceil(math.max(blocked_until, at + 12 * to_period) / 1000)
  debt, since = owed(debt, since, at, limit, period)
  if period == to_period then
    if heads == 1 then
      redis.call('LPOP', key)
    end
    push_head(key, at, debt, since, blocked_until, own)
    redis.call('PEXPIREAT', key, string.format('%d', expiry))
    return
  end
  local spent = spent_of(key, at, period, heads)
  debt = debt + math.max(0, spent - to_limit)
  spent = math.min(spent, to_limit)
  local more = math.min(debt, to_limit - spent)
  debt = math.min(debt - more, 10 * to_limit)
  redis.call('DEL', key)
  if spent > 0 then
    redis.call('RPUSH', key, string.format('%d %d %d', at, spent, spent))
  end
  if more > 0 then
    redis.call('RPUSH', key, string.format('%d %d %d', at, spent + more, more))
  end
  push_head(key, at, debt, debt > 0 and at or 0, blocked_until, own)
  redis.call('PEXPIREAT', key, string.format('%d', expiry))
end

-- Adds what a client has of its own to the answer about a limit.
local function answer_own(answer)
  if found then
    answer[5], answer[6], answer[7], answer[8] = found[1], found[3], found[4], found[5]
  end
end

-- Keeps a list, which is whole after `reset`, for as long as any of it counts.
local function keep_log(key, now, reset, debt, heads, own, line)
  if redis.call('EXISTS', key) == 0 then
    return
  end
  local expiry = now + reset
  if own and own[3] == 0 then
    return redis.call('PERSIST', key)
  elseif own and expiry > own[3] then
    -- what is more than the limit of the line is owed then; a limit that was lowered may have more spent
    local spent = math.max(own[1], spent_of(key, now, own[2], heads))
    local periods = math.min(12, math.ceil((debt + spent) / line[1]) + 1)
    expiry = math.max(expiry, own[3] + periods * line[2])
  elseif own then
    expiry = own[3]
  end
  redis.call('PEXPIREAT', key, string.format('%d', math.ceil(math.max(expiry, now + 1000) / 1000)))
end
