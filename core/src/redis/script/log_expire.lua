    if own and own[3] > 0 then
      call('PEXPIRE', key, math.ceil((now % 1000 + math.max(reset, own[3] - now)) / 1000))
    elseif reset > 0 and not own then
      call('PEXPIRE', key, math.ceil((now % 1000 + reset) / 1000))
    end
