local function $function(stored, now, cost, limit, period, count)
local $state, allowed, expiry, n
if stored and #stored == $size then
  $state = struct.unpack('$format', stored)
end

$algorithm
return allowed, expiry and struct.pack('$format', $state), expiry
end

