  local shortfall = missing - spent
