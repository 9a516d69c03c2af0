-- Calendar window: see calendar_window.rs. What it counts is in window_counter.lua.
-- Days and months are counted from 1 March of the year 0, 719,468 days before the epoch, so that
-- the leap day is the last day of a year of twelve months.
local function first_day(number)
  local month = number % 12
  local year = (number - month) / 12
  local leap_days = math.floor(year / 4) - math.floor(year / 100) + math.floor(year / 400)
  return 365 * year + leap_days + math.floor((153 * month + 2) / 5)
end

local day = math.floor(now / 86400000000) + 719468
-- the mean month has 146,097 / 4,800 days: by that half a month later is this one or the next
local current = math.floor((day + 15) * 4800 / 146097)
if first_day(current) > day then
  current = current - 1
end
local function end_after(windows)
  return (first_day(current + 1 + windows) - 719468) * 86400000000
end
local ends = end_after(0)

