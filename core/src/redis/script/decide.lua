-- Decides one limit: see script.rs. Given are stored, now, cost, limit, period, count, n, and, where
-- the command has them, block, since and asked. It makes allowed and changed; and, if something is
-- to be stored, new and expiry.
local $state, allowed, changed, new, expiry
local debt, held, held_until, blocked_until, owed, is_blocked, is_extended = 0
if stored and #stored == 24 then
  $state = struct.unpack('<LLL', stored)
elseif stored and #stored == 56 then
  $state = struct.unpack('<LLL', stored)
  held, held_until, debt, blocked_until = struct.unpack('<LLLL', stored, 25)
  block = block or 0
else
  -- nothing, or somebody else's, who knows how long: as good as nothing
  stored = ''
end
if block then
  block, since, asked = block + 0, (since or 0) + 0, asked or cost
  held, held_until, blocked_until = held or 0, held_until or 0, blocked_until or 0
  owed, debt = debt, math.min(debt, 10 * limit)
  -- after a clock that stepped back no block lasts for longer than one of this limit, or a century
  local longest = now + (block > 0 and block or 3153600000000000)
  if blocked_until > longest then
    blocked_until, is_extended = longest, true
  end
  is_blocked = blocked_until > now
  if is_blocked and cost > 0 and since == 0 then
    cost = 0
  end
end

$algorithm
if block then
  if cost < asked * (n or 1) and since == 0 then
    allowed = false
    if block > 0 and asked <= limit and not is_blocked then
      blocked_until, is_extended = now + block, true
    end
  end
  if changed then
    new = struct.pack('<LLL', $state, 0)
  elseif is_extended then
    changed, new, debt = true, string.sub(stored, 1, 24), owed
    if stored == '' then
      -- another limit is about to spend too much of this key
      new = string.rep('\0', 24)
    end
  end
  if changed then
    if held_until <= now then
      held, held_until = 0, 0
    end
    if blocked_until <= now then
      blocked_until = 0
    end
    if held > 0 or debt > 0 or blocked_until > 0 then
      new = new .. struct.pack('<LLLL', held, held_until, debt, blocked_until)
      expiry = math.max(expiry, held_until, blocked_until)
    end
  end
elseif changed then
  new = struct.pack('<LLL', $state, 0)
end
