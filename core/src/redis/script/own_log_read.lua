      if own and is_own then
        if own[3] > 0 and own[3] <= now then
          carry_log_over(key, now, own[3], own[1], own[2], head + 0, made + 0, blocked + 0, 1, limit, period)
          return sliding_log(key, now, cost, limit, period, block, since, requested)
        end
        line, found = {limit, period}, own
        limit, period = own[1], own[2]
      end
