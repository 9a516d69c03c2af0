-- Fixed window: see fixed_window.rs. What it counts is in window_counter.lua.
-- Windows of whole weeks begin on Mondays, and a Monday was three days before the epoch.
local aligned = now
if period >= 604800000000 and period % 604800000000 == 0 then
  aligned = now + 259200000000
end
local elapsed = aligned % period
local current, ends = (aligned - elapsed) / period, now - elapsed + period
local end_after

