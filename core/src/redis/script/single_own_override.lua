-- Checks one limit whose algorithm stores itself, and of which clients may have a quota of their own. KEYS, ARGV and the
-- answer are those of single_own.lua; if the client has a quota of its own, its limit, its end or 0, and the two numbers of
-- its rate follow.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local allowed, remaining, reset, retry, store = $function(
  KEYS[1], now, (ARGV[5] or 1) + 0, ARGV[1] + 0, ARGV[2] + 0, (ARGV[6] or 0) + 0,
  (ARGV[7] or 0) + 0)
local answer = {allowed, remaining, reset, retry}
answer_own(answer)
if store then
  store()
end
return {now, answer}
