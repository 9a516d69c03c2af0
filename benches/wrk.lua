-- For wrk: requests with random keys, all made beforehand so that they cost next to nothing while it runs, and a summary
-- in JSON. Arguments: the path, the number of keys, a seed.
local requests, last, count = {}, 0, 0
local threads = {}

function setup(thread)
    table.insert(threads, thread)
end

function init(args)
    local path, keys = args[1], tonumber(args[2])
    math.randomseed(tonumber(args[3]))
    -- As many as there are keys, within reason: each request is some 100 bytes.
    count = math.max(1, math.min(keys, 131072))
    for i = 1, count do
        local key = count == keys and i or math.random(keys)
        requests[i] = wrk.format("GET", string.format("%s?k=%d", path, key))
    end
    for i = count, 2, -1 do
        local j = math.random(i)
        requests[i], requests[j] = requests[j], requests[i]
    end
    -- What was used to prepare, which is nobody's request. Global, so that done() can ask the thread for it.
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
