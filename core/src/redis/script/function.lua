local function $function(
  stored, now, cost, limit, period, count, block, since, requested, n, touch)
local seen, alone
$decide
return allowed, new, expiry, remaining, cost
end

