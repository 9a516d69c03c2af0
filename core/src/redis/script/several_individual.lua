  if is_own then
    local record, ends
    stored, limit, period, count, record, ends =
      individual(algorithms[name], stored, now, is_own[1], is_own[2], is_own[3])
    ARGV[a + 3], ARGV[a + 4], ARGV[a + 5] = limit, period, count
    kept[key] = {algorithms[name], limit, period, count, record, ends, is_own}
  end
