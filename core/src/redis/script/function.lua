local function $function(stored, now, cost, limit, period, count, block, since, asked)
local n
$decide
return allowed, new, expiry
end

