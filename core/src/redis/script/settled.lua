-- Decides one limit of which charges are corrected later: see algorithm/minima.rs. Steps are two numbers each, behind ten
-- others, which for most limits are all zero but the first three.
local steps, before, charged_at = '', stored, since and since + 0 or 0
local minima, first, lowest, back, is_moved
if stored and #stored > 80 and #stored <= $longest_state and #stored % 16 == 0 then
  steps = string.sub(stored, 81)
  stored = string.sub(stored, 1, string.sub(stored, 25, 80) == '$zeros' and 24 or 80)
end
if cost < 0 and charged_at > 0 then
  if steps == '' then
    -- nobody has taken note of the charges
    cost, since = 0, now
  else
    -- a charge is not more than the limit
    cost = math.max(cost, -limit)
    minima = {struct.unpack('<' .. string.rep('LL', #steps / 16), steps)}
    -- the position after them
    minima[#minima] = nil
    if charged_at > now then
      charged_at = 0
    end
    for i = 1, #minima, 2 do
      if minima[i] > charged_at then
        first, lowest = i, minima[i + 1]
        break
      end
    end
$correct
  end
end
$decide
local spent = minima and 0 or charged_at > 0 and requested or cost
if is_moved and (minima or spent > 0) then
$missing
  shortfall = math.max(0, shortfall)
  if minima then
    local left, size, kept = shortfall, 0, {}
    if lowest then
      left = math.max(0, lowest - back)
    end
    for i = 1, #minima, 2 do
      local at, missing = minima[i], minima[i + 1]
      if at > charged_at then
        kept[size + 1], kept[size + 2], size = at, math.max(0, missing - back), size + 2
      elseif missing < left then
        kept[size + 1], kept[size + 2], size = at, missing, size + 2
      end
    end
    steps = size > 0 and struct.pack('<' .. string.rep('LL', size / 2), unpack(kept)) or ''
  elseif steps == '' then
    steps = struct.pack('<LL', now, 0)
  else
    local size = #steps
    local at, missing = struct.unpack('<LL', steps, size - 15)
    if at ~= now or missing > shortfall then
      while at and (missing >= shortfall or at > now) do
        shortfall, size, at = math.min(shortfall, missing), size - 16, nil
        if size > 0 then
          at, missing = struct.unpack('<LL', steps, size - 15)
        end
      end
      if at and (size == $longest_steps or shortfall - missing < quantum) then
        shortfall, size = missing, size - 16
      end
      steps = string.sub(steps, 1, size) .. struct.pack('<LL', now, shortfall)
    end
  end
end
if changed and steps ~= '' then
  new = new .. string.sub('$zeros', #new - 23) .. steps
end
