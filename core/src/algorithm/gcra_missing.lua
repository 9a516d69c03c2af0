  local parts = part - spent * rest
  local shortfall = tat - now - spent * whole + (parts - parts % count) / count
