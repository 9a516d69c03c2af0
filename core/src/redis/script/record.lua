-- A quota of the client's own stands behind its state: see overrides.rs. Given is stored. It makes stored without that; and, if
-- there is one, record, and record_ends, which is when it ends, or 0.
if stored and #stored >= $record and #stored % 8 > 1 and #stored % 8 < 4 and string.sub(stored, -2) == 'o\1' then
  record = string.sub(stored, -$record)
  stored, record_ends = string.sub(stored, 1, -$record - 1), struct.unpack('<L', record, 25)
  if record_ends > 2 ^ 53 then
    record = nil
  end
end
