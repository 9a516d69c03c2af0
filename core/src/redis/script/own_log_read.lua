      own = is_own and own_of(its)
      if own and own[3] > 0 and own[3] <= now then
        carry_log_over(key, own[3], own[1], own[2], head + 0, made + 0, blocked + 0, 1, limit, period)
        return sliding_log(key, now, cost, limit, period, block, since, requested)
      elseif own then
        limit, period, found = own[1], own[2], own
      end
