local function $function(stored, now, cost, limit, period, count)
local $state, allowed, expiry, n
if stored and #stored == 24 then
  $state = struct.unpack('<LLL', stored)
end

$algorithm
return allowed, expiry and struct.pack('<LLL', $state, 0), expiry
end

