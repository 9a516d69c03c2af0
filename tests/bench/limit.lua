-- The work of the module for a limit by token_bucket, in Lua: its EVALSHA over a connection from NGINX's pool, the
-- verdict from what the script has found, then the header fields, or a rejection.
local client = require "redis_client"
local byte, match, ceil, floor, min = string.byte, string.match, math.ceil, math.floor, math.min

-- A number of eight bytes, the lowest first, of which the last is not used.
local function number(bytes, at)
    local a, b, c, d, e, f, g = byte(bytes, at, at + 6)
    return a + 0x100 * (b + 0x100 * (c + 0x100 * (d + 0x100 * (e + 0x100 * (f + 0x100 * g)))))
end

-- The bucket after a request of cost 1, as token_bucket.rs has it, for an interval of whole µs: whether it passes, the
-- tokens that are left, and the µs until all are back and until the next is. `found` is the time, and what was stored.
local function decide(limit, found)
    local seconds, micros, state = match(found, "^(%d+) (%d+) (.*)$")
    local now = seconds * 1000000 + micros
    local tokens, moment = limit.capacity, now
    if state ~= "" then
        local held, newest = number(state, 1), number(state, 9)
        local age = now - newest
        if age < 0 then
            tokens = min(tokens, held)
        else
            local gained = floor(age / limit.interval)
            if held + gained < tokens then
                tokens, moment = held + gained, newest + gained * limit.interval
            end
        end
    end
    local allowed = tokens >= 1
    if allowed then
        tokens = tokens - 1
    end
    local until_next = moment + limit.interval - now
    return allowed, tokens, until_next + (limit.capacity - tokens - 1) * limit.interval, until_next
end

-- For the access phase. Of a limit is known: port, sha, prefix and arguments of its command; capacity; interval in µs.
return function(limit)
    return function()
        local key = limit.prefix .. (ngx.var.arg_k or "")
        local found, problem = client.call(limit.port, "EVALSHA", limit.sha, 1, key, unpack(limit.arguments))
        if not found then
            ngx.log(ngx.ERR, "redis: ", problem)
            return ngx.exit(503)
        end
        local allowed, remaining, reset, retry = decide(limit, found)
        local header = ngx.header
        header["X-RateLimit-Limit"] = limit.capacity
        header["X-RateLimit-Remaining"] = remaining
        header["X-RateLimit-Reset"] = ceil(reset / 1000000)
        if not allowed then
            header["Retry-After"] = ceil(retry / 1000000)
            return ngx.exit(429)
        end
    end
end
