-- Corrects a charge of a bucket that is refilled at intervals: see interval_bucket.rs.
    since = now
    if lowest and lowest <= -cost then
      -- without the charge it would have been full at the lowest step, and refilled a period after that
      local elapsed = math.max(0, now - struct.unpack('<L', stored, 9)) % period
      local refills = math.ceil(math.max(0, now - elapsed - lowest_at) / period)
      local later = refills - math.floor(math.max(0, now - lowest_at) / period)
      cost = math.min(0, math.max(0, later) * count - lowest)
      if elapsed > 0 then
        since = now - 1
      end
    end
    back = -cost
