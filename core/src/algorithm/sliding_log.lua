-- Sliding log: see sliding_log.rs.
-- Stored: a list of "<micros> <total> <cost>", in order of time; total counts all that was ever
-- written to this list, the entry included. Where there is a debt or a block, there is a head before
-- them: "x <debt> <since> <blocked until>"; and behind that the quota of the client's own, if it has one: its limit, its
-- period, its end or 0, and the two numbers of its rate. Lines without `override` keep it there, and count by their own.
-- It reads and writes the list itself: it gets the key, and answers what writes to it. Of a request that
-- is allowed it answers, instead of the retry, the reset without it.

--- decide
-- The quota of a client's own, of the part of a head that it stands in; nil for none.
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

local function sliding_log(key, now, cost, limit, period, block, since, requested)
  local call = redis.call
--@if override
  local line
  found = nil
--@end
  local heads, debt, debt_since, blocked_until, own = 0, 0, 0, 0

  local function entry(index)
    local text = call('LINDEX', key, index < 0 and index or index + heads)
    if not text then
      return nil
    end
    local time, total, spent = string.match(text, '^(%d+) (%d+) (%d+)$')
    if not time then
      return false, text
    end
    return tonumber(time), tonumber(total), tonumber(spent)
  end

  -- the first entry for which reached(time, total) holds; one past the last, if there is none
  local function search(reached)
    local low, high = 0, call('LLEN', key) - heads
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

  local function push(time, total, spent)
    call('RPUSH', key, string.format('%d %d %d', time, total, spent))
  end

  -- keeps only the entries from first on, and those before past; -1 for first is none
  local function trim(first, past)
    if first == -1 or first == past then
      call('DEL', key)
    elseif first > 0 or past then
      call('LTRIM', key, first, past and past - 1 or -1)
    end
  end

  -- writes a change of the entries, and what goes before them, for as long as any of it counts
  local function write(change, debt, reset)
    if heads == 1 then
      call('LPOP', key)
    end
    change()
    heads = (debt > 0 or blocked_until > now or own) and 1 or 0
    if heads == 1 then
      local blocked = blocked_until > now and blocked_until or 0
      call('LPUSH', key, string.format('x %d %d %d', debt, debt_since, blocked) .. (own and own.text or ''))
    end
--@if override
    if own then
      keep_log(key, now, reset, debt, heads, own, line)
    elseif reset > 0 then
      call('PEXPIRE', key, math.ceil((now % 1000 + reset) / 1000))
    end
--@else
    if own and own[3] > 0 then
      call('PEXPIRE', key, math.ceil((now % 1000 + math.max(reset, own[3] - now)) / 1000))
    elseif reset > 0 and not own then
      call('PEXPIRE', key, math.ceil((now % 1000 + reset) / 1000))
    end
--@end
  end

  -- how many entries are to be forgotten, the first one that is not, and the last one
  local forgotten, spent, total, owed = 0, 0, 0, 0
  local first_time, first_total, first_spent = entry(0)
  local last_time
  if first_time == false then
    local head, made, blocked, its = string.match(first_total, '^x (%d+) (%d+) (%d+) ?(.*)$')
    if head then
      own = own_of(its)
--@if override
      if own and is_own then
        if own[3] > 0 and own[3] <= now then
          carry_log_over(key, now, own[3], own[1], own[2], head + 0, made + 0, blocked + 0, 1, limit, period)
          return sliding_log(key, now, cost, limit, period, block, since, requested)
        end
        line, found = {limit, period}, own
        limit, period = own[1], own[2]
      end
--@end
      if own and own[3] > 0 and own[3] <= now then
        own = nil
      end
      heads, owed, debt_since, blocked_until = 1, head + 0, made + 0, blocked + 0
      first_time, first_total, first_spent = entry(0)
    end
  end

  -- when all of it is forgotten, and the block is over
  local function whole_in()
    local reset = math.max(0, blocked_until - now)
    if spent > 0 then
      reset = math.max(reset, last_time + period - now)
    end
    if debt > 0 then
      reset = math.max(reset, debt_since + (math.ceil(debt / limit) + 1) * period - now)
    end
    return reset
  end

  -- below zero for a client that is blocked, and for so long
  local function remaining()
    return blocked_until > now and now - blocked_until or math.max(0, limit - spent - debt)
  end

  local is_extended = false
  local longest = now + (block > 0$unless_own and block or 3153600000000000)
  if blocked_until > longest then
    blocked_until, is_extended = longest, true
  end
  debt = math.min(owed, $max_debt * limit)
  if first_time then
    last_time, total = entry(-1)
    spent = total - first_total + first_spent
  elseif first_time == false then
    -- a list of another format
    forgotten = -1
  end
  if first_time and last_time + period <= now then
    forgotten, spent, total = -1, 0, 0
  elseif first_time and first_time + period <= now then
    forgotten = search(function(time)
      return time + period > now
    end)
    first_time, first_total, first_spent = entry(forgotten)
    spent = total - first_total + first_spent
  end
  local is_ahead = spent > 0 and last_time > now
  if is_ahead or (debt > 0 and debt_since > now) then
    -- The clock stepped back: what is later than now counts as of now. That is written down even if nothing is spent, as
    -- it would be of now, and not be forgotten, until the clock has caught up.
    owed, debt_since = debt, math.min(debt_since, now)
    local later, before
    if is_ahead then
      later = search(function(time)
        return time > now
      end)
      if later > forgotten then
        before = select(2, entry(later - 1))
      else
        before = first_total - first_spent
        first_time, first_total, first_spent = now, total, spent
      end
      last_time = now
    end
    write(function()
      trim(forgotten, later)
      if is_ahead then
        push(now, total, total - before)
      end
    end, debt, whole_in())
    forgotten = 0
  end
  -- of the debt a limit is forgotten each period, the first one two periods after it last grew
  local made_before = debt_since
  local periods = math.max(0, math.floor((now - debt_since) / period) - 1)
  if debt > 0 and periods > 0 then
    debt, debt_since = math.max(0, debt - periods * limit), debt_since + periods * period
  end

  -- what writes a change of the block, if there is one: the entries and the debt stay as they are
  local function only_block(reset)
    return is_extended and function()
      debt_since = made_before
      write(function() end, owed, reset)
    end
  end

  -- takes so much off the entries of the time since, or of those before it: how much, and what writes that
  local function take_off(amount)
    local base, count = first_total - first_spent, call('LLEN', key) - heads
    local past = math.max(forgotten, search(function(time)
      return time > since
    end))
    if count - past > 16 then
      -- off the oldest entries, which costs less: what is left is removed later
      local _, before, first = entry(past)
      local back = math.min(amount, before - first - base)
      local oldest = search(function(_, reached)
        return reached > base + back
      end)
      local time, reached = entry(oldest)
      return back, function()
        trim(oldest)
        call('LPOP', key)
        call('LPUSH', key, string.format('%d %d %d', time, reached, reached - base - back))
      end
    end

    -- the totals of later entries are written anew
    local later, reached = {}, total
    for index = past, count - 1 do
      later[#later + 1] = {entry(index)}
    end
    if later[1] then
      reached = later[1][2] - later[1][3]
    end
    local back = math.min(amount, reached - base)
    local left = reached - back
    local newest, time, cost = forgotten, nil, nil
    if left > base then
      newest = search(function(_, reached)
        return reached >= left
      end)
      time, reached, cost = entry(newest)
      last_time = later[1] and last_time or time
    end
    return back, function()
      trim(forgotten, newest)
      if left > base then
        push(time, left, cost - (reached - left))
      end
      for _, one in ipairs(later) do
        push(one[1], one[2] - back, one[3])
      end
    end
  end

  if cost < 0 then
    since = since > 0 and since or now
    local back, change = 0, nil
    if spent > 0 and since + period > now then
      back, change = take_off(-cost)
    end
    spent = spent - back
    local reset = whole_in()
    if back == 0 then
      return 1, remaining(), reset, 0, only_block(reset)
    end
    return 1, remaining(), reset, 0, function()
      write(change, debt, reset)
    end
  end

  if since > 0 then
    -- what is more than there is, is owed
    local more = math.min(cost, math.max(0, limit - spent - debt))
    local owes = math.min(cost - more, $max_debt * limit - debt)
    if owes > 0 then
      debt_since = now
    end
    debt, spent, total = debt + owes, spent + more, total + more
    if more > 0 then
      last_time = now
    end
    local reset = whole_in()
    if more + owes == 0 then
      return 1, remaining(), reset, 0, only_block(reset)
    end
    return 1, remaining(), reset, 0, function()
      write(function()
        trim(forgotten)
        if more > 0 then
          push(now, total, more)
        end
      end, debt, reset)
    end
  end

  local allowed, retry = 1, 0
  if cost > math.max(0, limit - spent - debt) then
    allowed = 0
    if cost > limit then
      retry = -1
    else
      -- until so much has been forgotten, of the entries and of the debt
      local needed, freed, at = spent + debt + cost - limit, 0, now
      for portion = 0, math.ceil(debt / limit) do
        freed = math.min(debt, portion * limit)
        if portion > 0 then
          at = debt_since + (portion + 1) * period
        end
        if needed - freed <= spent then
          local time = at
          if needed > freed then
            local reached = first_total - first_spent + needed - freed
            local first = first_time
            if first_total < reached then
              first = entry(search(function(_, total)
                return total >= reached
              end))
            end
            time = math.max(at, first + period)
          end
          retry = retry == 0 and time - now or math.min(retry, time - now)
        end
      end
    end
  end

  local is_blocked = blocked_until > now
  local rejects = requested and requested > 0 or not requested and retry > 0
  if rejects and block > 0 and not is_blocked then
    blocked_until, is_extended = now + block, true
  end
  if blocked_until > now and cost > 0 then
    allowed, retry = 0, retry == -1 and -1 or math.max(retry, blocked_until - now)
  end
  local before = whole_in()
  if allowed == 0 then
    return allowed, remaining(), before, retry, only_block(before)
  end
  if cost == 0 then
    return allowed, remaining(), before, before, only_block(before)
  end

  spent, total, last_time = spent + cost, total + cost, now
  local reset = whole_in()
  return allowed, remaining(), reset, before, function()
    write(function()
      trim(forgotten)
      push(now, total, cost)
    end, debt, reset)
  end
end
