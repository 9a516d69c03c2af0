    if own then
      keep_log(key, now, reset, debt, heads, own, line)
    elseif reset > 0 then
      call('PEXPIRE', key, math.ceil((now % 1000 + reset) / 1000))
    end
