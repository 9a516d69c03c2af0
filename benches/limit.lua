-- What the module does for one limit, in Lua: one EVALSHA over a connection from NGINX's pool, then the header fields, or
-- a rejection. The configuration says what the words of the command are and where the key stands in it.
local client = require "redis_client"
local limit = _G[ngx.var.limit]

local verdict, problem = client.evalsha(redis_port, limit.sha, limit.prefix .. (ngx.var.arg_k or ""), limit.arguments)
if not verdict then
    ngx.log(ngx.ERR, "redis: ", problem)
    return ngx.exit(503)
end

-- Allowed, remaining, reset and retry, the last two in microseconds.
local header = ngx.header
header["X-RateLimit-Limit"] = limit.limit
header["X-RateLimit-Remaining"] = verdict[2]
header["X-RateLimit-Reset"] = math.ceil(verdict[3] / 1000000)
if verdict[1] ~= 1 then
    header["Retry-After"] = math.ceil(verdict[4] / 1000000)
    return ngx.exit(429)
end
