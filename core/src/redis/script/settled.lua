-- Decides one limit of which charges are corrected later: see algorithm/minima.rs. The steps are two numbers each. They
-- stand behind the state, or behind all ten numbers if there are more, and before a byte that tells such a value from others.
local whole_value, base, ends, charged_at = stored, 24, 24, since and since + 0 or 0
local tail, is_correction, first, lowest, lowest_at, back, is_moved = ''
if stored and $has_steps then
  base, ends = #stored % 16 == 9 and 24 or 80, #stored - 1
  stored = string.sub(stored, 1, base)
end
if cost < 0 and charged_at > 0 then
  if ends == base then
    -- nobody has taken note of the charges
    cost, since = 0, now
  else
    -- a charge is not more than the limit
    cost, is_correction, first = math.max(cost, -limit), true, ends + 1
    if charged_at > now then
      charged_at = 0
    end
    while first > base + 1 do
      local at, missing = struct.unpack('<LL', whole_value, first - 16)
      if at <= charged_at then
        break
      end
      first, lowest_at, lowest = first - 16, at, missing
    end
$correct
  end
end
$decide
local spent = is_correction and 0 or charged_at > 0 and requested or cost
if is_moved and (is_correction or spent > 0) then
$missing
  shortfall = math.max(0, shortfall)
  if is_correction then
    local left = lowest and math.max(0, lowest - back) or shortfall
    for i = first, ends, 16 do
      local at, missing = struct.unpack('<LL', whole_value, i)
      tail = tail .. struct.pack('<LL', at, math.max(0, missing - back))
    end
    ends = first - 1
    while ends > base and select(2, struct.unpack('<LL', whole_value, ends - 15)) >= left do
      ends = ends - 16
    end
  else
    local at, missing
    if ends > base then
      at, missing = struct.unpack('<LL', whole_value, ends - 15)
    else
      shortfall = 0
    end
    if at ~= now or missing > shortfall then
      while at and (missing >= shortfall or at > now) do
        shortfall, ends, at = math.min(shortfall, missing), ends - 16, nil
        if ends > base then
          at, missing = struct.unpack('<LL', whole_value, ends - 15)
        end
      end
      if at and shortfall - missing < (shortfall - shortfall % $parts) / $parts then
        shortfall, ends = missing, ends - 16
      end
      tail = struct.pack('<LL', now, shortfall)
      if ends - base >= $longest_steps then
        -- of the two that differ least the lower one takes the time of the later one
        local closest, least, difference
        local _, below = struct.unpack('<LL', whole_value, base + 1)
        for i = base + 17, ends + 1, 16 do
          local above = shortfall
          if i < ends then
            _, above = struct.unpack('<LL', whole_value, i)
          end
          local other = math.max(0, above - below)
          if not difference or other < difference then
            closest, least, difference = i, below, other
          end
          below = above
        end
        if closest > ends then
          tail, ends = struct.pack('<LL', now, least), ends - 16
        else
          at = struct.unpack('<L', whole_value, closest)
          tail = struct.pack('<LL', at, least)
            .. string.sub(whole_value, closest + 16, ends) .. tail
          ends = closest - 17
        end
      end
    end
  end
end
if changed and (tail ~= '' or ends > base) then
  if #new == 72 then
    new = new .. '\0\0\0\0\0\0\0\0'
  end
  new = new .. string.sub(whole_value or '', base + 1, ends) .. tail .. '\1'
end
