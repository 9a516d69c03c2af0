    local new, expiry, record, record_ends = write.new, write.expiry
    if kept[key] then
      record, record_ends = unpack(kept[key])
    end
$write
