  local parts = part + (missing - spent) * rest
  local shortfall = last - now + (missing - spent) * whole + (parts - parts % count) / count
