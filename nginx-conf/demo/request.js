// One request to a limited location, and its decision.

import { budget } from "./budget.js";

const OUTCOMES = { PASSED: "passed", DELAYED: "delayed", REJECTED: "rejected" };
const SHOWN = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit-Policy", "RateLimit",
  "Retry-After", "X-Decision", "X-Decision-Source", "X-Decision-Time", "X-Request-Time"];

function url(machine, side, { algorithm, ...parameters }, cost) {
  return `${machine}/demo/${algorithm}?${new URLSearchParams({ ...parameters, side, cost })}`;
}

// Browsers keep connections with and without credentials apart. So the two sides have connections of their own, and a
// delay on one does not hold up the other.
const credentials = (side) => (side === "a" ? "same-origin" : "omit");

function understand({ status, statusText, headers }) {
  const number = (name) => (headers.has(name) ? Number(headers.get(name)) : null);
  const lines = SHOWN.filter((name) => headers.has(name)).map((name) => `${name}: ${headers.get(name)}`);
  return {
    outcome: OUTCOMES[headers.get("X-Decision")] ?? "failed",
    status,
    limit: number("X-RateLimit-Limit"),
    remaining: number("X-RateLimit-Remaining"),
    reset: number("X-RateLimit-Reset"),
    retryAfter: number("Retry-After"),
    took: number("X-Request-Time"),
    budget: budget(headers),
    source: headers.get("X-Decision-Source") ?? "",
    text: [`${status} ${statusText}`, ...lines].join("\n"),
  };
}

const FAILED = { outcome: "failed", status: 0, limit: null, retryAfter: null, budget: null, source: "", text: "NGINX does not answer." };

export async function send(side, config, { cost = config.cost, machine = location.origin } = {}) {
  try {
    const response = await fetch(url(machine, side, config, cost), { cache: "no-store", credentials: credentials(side) });
    await response.text();
    return understand(response);
  } catch {
    return FAILED;
  }
}
