$algorithm

-- Asks one limit whose algorithm stores itself. KEYS: its key. ARGV: limit, period, count, n, cost,
-- block, since; those at the end that are 1, and of the last two 0, may be left out, and n is 1. A
-- cost below zero is given back. With since it settles what was charged then.
-- Answers the time in microseconds, and: allowed, remaining, reset and retry, the last two in
-- microseconds.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local allowed, remaining, reset, retry, store = $function(
  KEYS[1], now, (ARGV[5] or 1) + 0, ARGV[1] + 0, ARGV[2] + 0, (ARGV[6] or 0) + 0, (ARGV[7] or 0) + 0)
if store then
  store()
end
return {now, {allowed, remaining, reset, retry}}
