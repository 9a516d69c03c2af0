// An NGINX of the fleet: what it does, and the state of Redis on its metrics page.

import { Chart } from "./chart.js";
import { byId, mark, showTally, write } from "./dom.js";
import { History } from "./history.js";

const EVERY = 1000; // ms
const PATIENCE = 3000; // ms

const STATES = {
  unknown: "…", up: "✓ asks Redis", away: "! without Redis", silent: "! Redis does not reply", gone: "✕ does not answer",
};

// The attempts to connect to Redis, by result.
function attemptsOf({ nodes }) {
  const all = Object.values(nodes).map((node) => node.connection_attempts);
  const sum = (result) => all.reduce((total, attempts) => total + attempts[result], 0);
  return { refused: sum("refused"), timeout: sum("timeout") };
}

// A server of a cluster that nobody uses has no connections.
function isWell({ nodes }) {
  const used = Object.values(nodes).filter(({ connections: { ready, connecting } }) => ready + connecting > 0);
  return used.every((node) => node.connections.ready > 0 && !node.breaker_open && !node.node_slow);
}

export class Machine {
  state = "unknown";
  history = new History();
  #attempts = { refused: 0, timeout: 0 };
  #root;
  #chart;

  constructor(url) {
    this.url = url;
    this.name = new URL(url).host;
    this.#root = byId("machine").content.cloneNode(true).firstElementChild;
    const link = this.#root.querySelector("a");
    link.href = `${url}/metrics`;
    link.textContent = this.name;
    this.#root.querySelector("svg").setAttribute("aria-label", `Requests through ${this.name}`);
    this.#chart = new Chart(this.#root.querySelector("svg"));
    byId("machines").append(this.#root);
    this.#watch();
  }

  async #watch() {
    if (!document.hidden) this.state = await this.#ask();
    setTimeout(() => this.#watch(), EVERY);
  }

  async #ask() {
    try {
      const signal = AbortSignal.timeout(PATIENCE);
      const response = await fetch(`${this.url}/metrics?format=json`, { cache: "no-store", credentials: "omit", signal });
      return this.#stateBy(await response.json());
    } catch {
      return "gone";
    }
  }

  // A Redis that is away refuses connections, and one that is frozen does not answer them. Between two attempts it is as
  // it was.
  #stateBy(page) {
    const [before, now] = [this.#attempts, attemptsOf(page)];
    this.#attempts = now;
    if (isWell(page)) return "up";
    if (now.refused > before.refused) return "away";
    return now.timeout > before.timeout || this.state !== "away" ? "silent" : "away";
  }

  show(time, limit, top) {
    this.#chart.draw(this.history.rates(time), time, limit, top);
    const state = this.#root.querySelector(".state");
    write(state, STATES[this.state]);
    mark(state, "class", `state ${this.state}`);
    showTally(this.#root.querySelector(".tally"), this.history.total);
  }
}
