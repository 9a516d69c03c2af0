  local shortfall, quantum = missing - spent, (limit + -limit % $parts) / $parts
