  local line, record, ends = lines[i]
  stored, limit, period, count, record, ends = individual(algorithms[name], stored, now, line[1], line[2], line[3])
  ARGV[a + 3], ARGV[a + 4], ARGV[a + 5] = limit, period, count
  kept[key] = {algorithms[name], limit, period, count, record, ends, line}
