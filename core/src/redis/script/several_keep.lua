    local decide, limit, period, count, record, ends, line = unpack(kept[key])
    keep(decide, key, write.new, write.expiry, now, limit, period, count, record, ends, line)
