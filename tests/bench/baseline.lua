-- The least that a limiter in Redis can do: get the time, read a state and write one that expires.
redis.call('TIME')
redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
