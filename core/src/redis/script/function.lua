local function $function(
  stored, now, cost, limit, period, count, block, since, requested, n, touch)
$decide
return allowed, new, expiry, remaining, cost
end

