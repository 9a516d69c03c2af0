-- A token bucket, whichever way it is refilled: see bucket.rs. With a debt it is below empty.

--- decide
$terms

local stepped_back, moved = false
if not tokens then
  $full
else
  tokens, debt = tokens - debt, 0
  $refill
end

allowed = cost <= 0 or cost <= tokens
if not allowed then
  cost = since and since > 0 and math.min(cost, tokens + $max_debt * limit) or 0
elseif cost < 0 and since and since > 0 and since < now and tokens < most then
  -- nothing that may have been regained since comes back
  cost = math.max(cost, -limit)
  $give_back_late
elseif cost < 0 then
  -- no more comes back than is missing
  cost = math.max(cost, math.min(0, tokens - most))
elseif n and cost > 0 then
  cost = cost * math.min(n, math.floor(tokens / cost))
end
tokens = tokens - cost
local missing = limit - tokens
remaining = tokens
changed = cost ~= 0 or moved or (stepped_back and missing > 0)
if tokens < 0 then
  tokens, debt = 0, -tokens
end
if changed or block then
  $expiry
end

--- has_more
function(tokens, last, part, debt, others, other_last, other_part, other_debt)
  tokens, others = tokens + other_debt, others + debt
  return tokens > others or tokens == others
    and (last < other_last or last == other_last and part < other_part)
end
