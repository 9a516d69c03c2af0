// Traffic, and the limit that it meets. `share` is the part of the rate that a client sends at a moment, in seconds since
// 1970: windows begin at whole multiples of their length.

const always = () => 1;
const visitor = [{ name: "visitor", share: always }];

export const PRESETS = [
  {
    name: "Steady", rate: 30, clients: visitor,
    limit: { algorithm: "token_bucket", n: 10, per: "1s", burst: 10 },
    about: "Each machine passes some of the requests: all together no more than the limit, 10 a second.",
  },
  {
    name: "Window edge", rate: 20,
    clients: [{ name: "visitor", share: (time) => ((time + 1) % 20 < 2 ? 1 : 0) }],
    limit: { algorithm: "fixed_window", n: 20, per: "10s" },
    about: "Bursts around every second edge of a fixed window of 10 s: 40 pass within two seconds, where 20 are allowed in ten.",
  },
  {
    name: "Burst", rate: 60,
    clients: [{ name: "visitor", share: (time) => (time % 8 < 0.5 ? 1 : 0) }],
    limit: { algorithm: "leaky_bucket", n: 10, per: "1s", burst: 10 },
    about: "30 requests within half a second, every 8 s. A leaky bucket lets up to 10 wait for their turn, and rejects the others.",
  },
  {
    name: "Login attack", rate: 40,
    clients: [{ name: "account", share: always }],
    limit: { algorithm: "sliding_log", n: 5, per: "1m" },
    about: "Somebody tries passwords of one account through all machines. 5 attempts a minute pass.",
  },
  {
    name: "Redis away", rate: 30, clients: visitor,
    limit: { algorithm: "token_bucket", n: 10, per: "1s", burst: 10 },
    about: "Press k in the terminal to kill Redis, or f to freeze it, and s to start it. Without it each machine has the budget for itself.",
  },
  {
    name: "Noisy neighbour", rate: 50,
    clients: [{ name: "you", share: () => 0.1 }, { name: "neighbour", share: () => 0.9 }],
    limit: { algorithm: "gcra", n: 10, per: "1s", burst: 5 },
    about: "A neighbour sends nine requests where you send one. Each has a budget of its own: yours pass.",
  },
];
