local function $function(
  stored, now, cost, limit, period, count, block, since, asked, n, touch)
$decide
return allowed, new, expiry, remaining, cost
end

