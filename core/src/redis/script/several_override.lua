
-- The quotas of the lines whose clients may have others of their own, and what is to be kept of each key.
local lines, kept = {}, {}
for i = 1, #KEYS do
  local a = (i - 1) * width
  local name, marks = string.gsub(ARGV[a + 1], '_override$', '')
  ARGV[a + 1] = name
  lines[i] = marks > 0 and {ARGV[a + 3] + 0, ARGV[a + 4] + 0, ARGV[a + 5] + 0}
end

