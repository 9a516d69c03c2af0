-- Corrects a charge of what comes back bit by bit: see settled.rs. What is beyond the lowest that was missing can have
-- been regained in some time.

--- correct
local rest = period % count
local parts = -cost * rest
local all = -cost * ((period - rest) / count) + (parts + -parts % count) / count
back = lowest and math.min(all, lowest) or all
since = math.max(1, now - (all - back))
