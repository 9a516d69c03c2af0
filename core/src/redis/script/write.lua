-- Writes new to the key, for as long as it counts, and record, which counts for other lines, until it ends. Some servers
-- delete a key at the start of the millisecond that is given, and do not store what is to expire in the present one.
-- -a % b is what is missing from a to a multiple of b.
if expiry <= now then
  expiry = now + 1
end
if record and record_ends == 0 then
  call('SET', key, new .. record)
else
  if record and record_ends > now then
    new, expiry = new .. record, math.max(expiry, record_ends)
  end
  call('SET', key, new, 'PXAT', string.format('%d', (expiry + -expiry % 1000) / 1000))
end
