-- Checks one limit whose algorithm stores itself. KEYS and ARGV are those of single.lua; n is 1.
-- Answers the time in microseconds, and: allowed, remaining, reset and retry, the last two in
-- microseconds; if it is allowed the last one is the reset without this request. If the client has a quota of its own, its
-- limit, its end or 0, and the two numbers of its rate follow.
--@if override
local is_own = true
$own_log
--@end
$algorithm
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local allowed, remaining, reset, retry, store = $function(
  KEYS[1], now, (ARGV[5] or 1) + 0, ARGV[1] + 0, ARGV[2] + 0, (ARGV[6] or 0) + 0,
  (ARGV[7] or 0) + 0)
local answer = {allowed, remaining, reset, retry}
--@if override
answer_own(answer)
--@end
if store then
  store()
end
return {now, answer}
