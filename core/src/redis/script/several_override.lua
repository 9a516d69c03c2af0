
-- The quotas of the lines, and of which of these clients may have others of their own.
local lines, owned = {}, {}
for i = 1, #KEYS do
  local a = (i - 1) * width
  local name, marks = string.gsub(ARGV[a + 1], '_override$', '')
  ARGV[a + 1] = name
  lines[i], owned[i] = {ARGV[a + 3] + 0, ARGV[a + 4] + 0, ARGV[a + 5] + 0}, marks > 0
end
