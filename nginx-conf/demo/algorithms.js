// The parameters that can be configured, and how the quota of each algorithm comes back:
//   evenly    at the rate;
//   at once   when the window ends;
//   unknown   it depends on the past requests: only an answer shows it.

export const ALGORITHMS = {
  token_bucket: {
    burst: "capacity", least: 1, refill: "evenly",
    about: "Starts full. Each request takes tokens, which come back evenly at the rate.",
  },
  gcra: {
    burst: "burst", least: 0, refill: "evenly",
    about: "One request each interval of the rate, and a burst more at once. The limit is burst + 1.",
  },
  leaky_bucket: {
    burst: "burst", least: 0, refill: "evenly",
    about: "Requests leave one each interval of the rate. Up to a burst of them wait for their turn, others are denied.",
  },
  sliding_window: {
    burst: null, refill: "unknown",
    about: "Counts this window, and the part of the one before that still overlaps the last period.",
  },
  sliding_log: {
    burst: null, refill: "unknown",
    about: "Remembers each request of the last period: the rate holds in any period, exactly.",
  },
  fixed_window: {
    burst: null, refill: "at once",
    about: "Counts the requests of each period. The whole quota comes back when the next one starts.",
  },
};

const SECONDS = { "1s": 1, "10s": 10, "1m": 60, "1h": 3600 };

export const unitsPerSecond = ({ n, per }) => n / SECONDS[per];

// How much there is at most.
export function quota({ algorithm, n, burst }) {
  const { burst: name } = ALGORITHMS[algorithm];
  if (name === null) return Number(n);
  return name === "capacity" ? Number(burst) : Number(burst) + 1;
}

// The line of nginx.conf that such a limit would have.
export function directive({ algorithm, n, per, burst, cost }) {
  const { burst: name } = ALGORITHMS[algorithm];
  const words = ["rate_limit_redis $key", `rate=${n}r/${per.replace(/^1(?!0)/, "")}`, `algorithm=${algorithm}`];
  if (name) words.push(`${name}=${burst}`);
  if (cost !== "1") words.push(`cost=${cost}`);
  return `${words.join(" ")};`;
}
