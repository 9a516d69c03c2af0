-- For wrk: requests with random keys, all made beforehand so that they cost next to nothing while it runs, and a summary
-- in JSON. Arguments: the path, the number of keys, a seed; how keys are drawn: each as often as any other (even), or the
-- k-th in proportion to 1 / k (zipf); and the time between two requests of a connection in ms, 0 for none.
local requests, last, count = {}, 0, 0
local threads = {}

-- Draws keys whose frequencies follow Zipf's law.
local function zipf(keys)
    local sums, sum = {}, 0
    for key = 1, keys do
        sum = sum + 1 / key
        sums[key] = sum
    end
    return function()
        local aim, low, high = math.random() * sum, 1, keys
        while low < high do
            local middle = math.floor((low + high) / 2)
            if sums[middle] < aim then low = middle + 1 else high = middle end
        end
        return low
    end
end

function setup(thread)
    table.insert(threads, thread)
end

function init(args)
    local path, keys, is_zipf, gap = args[1], tonumber(args[2]), args[4] == "zipf", tonumber(args[5])
    math.randomseed(tonumber(args[3]))
    -- One for each key, within reason: each request is some 100 bytes.
    count = is_zipf and 131072 or math.max(1, math.min(keys, 131072))
    local draw = is_zipf and zipf(keys) or function() return math.random(keys) end
    for i = 1, count do
        local key = not is_zipf and count == keys and i or draw()
        requests[i] = wrk.format("GET", string.format("%s?k=%d", path, key))
    end
    for i = count, 2, -1 do
        local j = math.random(i)
        requests[i], requests[j] = requests[j], requests[i]
    end
    if gap > 0 then
        -- wrk takes whole ms. It calls this for each request, and so only where there is one.
        delay = function() return math.floor(gap + math.random()) end
    end
    -- CPU time that was used to prepare, which belongs to no request. Global, so that done() can read it from the thread.
    preparation = os.clock()
end

function request()
    last = last < count and last + 1 or 1
    return requests[last]
end

function done(summary, latency)
    local errors = summary.errors
    local json = '{"requests": %d, "seconds": %.6f, "refused": %d, "broken": %d, "preparation": %.3f, ' ..
        '"p50": %.1f, "p99": %.1f, "mean": %.2f}'
    print(json:format(summary.requests, summary.duration / 1e6, errors.status,
        errors.connect + errors.read + errors.write + errors.timeout, threads[1]:get("preparation"),
        latency:percentile(50), latency:percentile(99), latency.mean))
end
