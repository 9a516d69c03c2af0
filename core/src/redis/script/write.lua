-- Writes new to the key, for as long as it counts, and record, which counts for other lines, until it ends.
if expiry < now + 1000 then
  -- some servers do not store what is to expire in the present millisecond
  expiry = now + 1000
end
if record and record_ends == 0 then
  call('SET', key, new .. record)
else
  if record and record_ends > now then
    new, expiry = new .. record, math.max(expiry, record_ends + 999)
  end
  call('SET', key, new, 'PXAT', string.format('%d', expiry / 1000))
end
