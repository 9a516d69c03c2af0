-- The part that algorithms with aligned windows share: see window.rs.

--- aligned
-- The present, from when windows are counted: the Unix epoch, or, for windows of whole weeks, a Monday, which was three
-- days before the epoch; and how much of the window has elapsed. A window is period units of count microseconds.
local units = (now - now % count) / count
local aligned, length = units, period * count
if length >= 604800000000 and length % 604800000000 == 0 then
  aligned = units + 259200000000 / count
end
local elapsed = aligned % period
