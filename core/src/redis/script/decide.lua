-- Decides one limit: see script.rs. Given are stored, now, cost, limit, period, count, n, and, where
-- the command has them, block, since and requested. It makes allowed and changed; and, if something is
-- to be stored, new and expiry.
local $state, allowed, changed, new, expiry, remaining
local debt, most, older, older_until, newer, newer_until, blocked_until = 0, limit
local charged, more, floors, owed, is_blocked, is_extended = 0
if stored and #stored == 24 then
  $state = struct.unpack('<LLL', stored)
elseif stored and (#stored == 72 or #stored == 80 or $has_steps) then
  -- what settled.lua has stored behind the numbers is not written again
  stored = string.sub(stored, 1, #stored % 16 == 9 and 24 or 80)
  $state = struct.unpack('<LLL', stored)
  if #stored > 24 then
    older, older_until, newer, newer_until, debt, blocked_until = struct.unpack('<LLLLLL', stored, 25)
  end
  if #stored == 80 then
    charged = struct.unpack('<L', stored, 73)
  end
  block = block or 0
else
  -- nothing, or a value of another format, of any length: as if nothing is stored
  stored = ''
end
if block then
  block, since, requested = block + 0, (since or 0) + 0, requested or cost
  older, older_until, newer = older or 0, older_until or 0, newer or 0
  newer_until, blocked_until = newer_until or 0, blocked_until or 0
  owed, debt, more = debt, math.min(debt, $max_debt * limit), math.abs(cost)
  -- after a clock that stepped back no block lasts for longer than one of this limit, or a century
  local longest = now + (block > 0$unless_own and block or 3153600000000000)
  if blocked_until > longest then
    blocked_until, is_extended = longest, true
  end
  -- nor does a hold, for longer than one that begins now: see hold.rs
  local latest = now + $longest - now % 2
  if older_until > latest or newer_until > latest then
    older_until, newer_until = math.min(older_until, latest), math.min(newer_until, latest)
    is_extended = true
  end
  -- at these moments there was no more than so much: at the ends of holds, and now
  if older > 0 or newer > 0 then
    local held_older, held_newer = older, newer
    floors = {}
    if older > 0 and older_until <= now then
      floors[1] = {older_until, math.max(0, limit - older - newer)}
      held_older = 0
    end
    if newer > 0 and newer_until <= now then
      floors[#floors + 1] = {newer_until, math.max(0, limit - held_older - newer)}
      held_newer = 0
    end
    if held_older > 0 or held_newer > 0 then
      most = math.max(0, limit - held_older - held_newer)
      floors[#floors + 1] = {now, most}
    end
  end
  is_blocked = blocked_until > now
  if is_blocked and cost > 0 and since == 0 then
    cost = 0
  end
end

$algorithm
if block then
  -- Less is spent than was requested if a block or the algorithm rejects. In a second pass nothing is spent, and nothing
  -- counts as requested, but what this limit itself has rejected in the first one.
  if cost < requested * (n or 1) and since == 0 then
    allowed = false
    if block > 0 and requested <= limit and not is_blocked then
      blocked_until, is_extended = now + block, true
    end
  end
  if changed or touch then
    changed, new = true, struct.pack('<LLL', $state, 0)
    -- what is charged or corrected while units are held is counted; of a hold that is over, all
    charged = charged + (since > 0 and more or math.max(0, cost))
    if older == 0 or older_until <= now then
      older, older_until, charged = 0, 0, charged + older
    end
    if newer == 0 or newer_until <= now then
      newer, newer_until, charged = 0, 0, charged + newer
    end
    charged = (older > 0 or newer > 0) and math.min(2 ^ 53, charged) or 0
    if blocked_until <= now then
      blocked_until = 0
    end
  elseif is_extended then
    changed, new, debt = true, string.sub(stored, 1, 24), owed
    if stored == '' then
      -- another limit is about to spend too much of this key
      new = string.rep('\0', 24)
    end
  end
  if changed and (older > 0 or newer > 0 or debt > 0 or blocked_until > 0) then
    new = new .. struct.pack(
      '<LLLLLL', older, older_until, newer, newer_until, debt, blocked_until)
    if charged > 0 then
      new = new .. struct.pack('<L', charged)
    end
    if older > 0 or newer > 0 then
      -- what is held begins to come back at the end of the hold
      expiry = expiry + period + math.max(0, older_until - now, newer_until - now)
    end
    expiry = math.max(expiry, blocked_until)
  end
elseif changed then
  new = struct.pack('<LLL', $state, 0)
end
