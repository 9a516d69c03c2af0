-- A small client of Redis over cosockets, for any command.
local tcp = ngx.socket.tcp
local insert, concat = table.insert, table.concat

local function encode(words)
    local parts = { "*", #words, "\r\n" }
    for _, word in ipairs(words) do
        word = tostring(word)
        insert(parts, "$")
        insert(parts, #word)
        insert(parts, "\r\n")
        insert(parts, word)
        insert(parts, "\r\n")
    end
    return parts
end

local function reply(socket)
    local line, problem = socket:receive()
    if not line then
        return nil, problem
    end
    local kind, rest = line:sub(1, 1), line:sub(2)
    if kind == ":" then
        return tonumber(rest)
    elseif kind == "*" then
        local values = {}
        for i = 1, tonumber(rest) do
            values[i], problem = reply(socket)
            if problem then
                return nil, problem
            end
        end
        return values
    end
    return nil, line
end

local client = {}

function client.evalsha(port, sha, key, arguments)
    local socket = tcp()
    socket:settimeout(1000)
    local ok, problem = socket:connect("127.0.0.1", port, { pool_size = 128 })
    if not ok then
        return nil, problem
    end
    ok, problem = socket:send(encode({ "EVALSHA", sha, 1, key, unpack(arguments) }))
    if not ok then
        return nil, problem
    end
    local answer
    answer, problem = reply(socket)
    if answer then
        socket:setkeepalive(60000, 128)
    end
    return answer, problem
end

return client
