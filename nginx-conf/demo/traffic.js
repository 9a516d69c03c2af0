// Requests through the machines of the fleet in turn, so many a second.

import { send } from "./request.js";

const EVERY = 50; // ms between two looks at what is due
const AT_ONCE = 60; // requests under way: what is due beyond is not sent

export class Traffic {
  rate = 0;
  #machines;
  #onAnswer;
  #clients = [];
  #limit = {};
  #timer = 0;
  #looked = 0;
  #turn = 0;
  #underWay = 0;

  constructor(machines, onAnswer) {
    this.#machines = machines;
    this.#onAnswer = onAnswer;
  }

  get isRunning() {
    return this.#timer !== 0;
  }

  // Starts with whole budgets: the keys of the clients are of this start alone.
  start({ clients, limit }) {
    this.stop();
    const start = Date.now().toString(36);
    this.#clients = clients.map((client) => ({ ...client, key: `${client.name}.${start}`, due: 0 }));
    this.#limit = limit;
    this.#looked = performance.now();
    this.#timer = setInterval(() => this.#look(), EVERY);
  }

  stop() {
    clearInterval(this.#timer);
    this.#timer = 0;
  }

  #look() {
    const now = performance.now();
    // A browser looks only once a second while the page is hidden.
    const seconds = Math.min((now - this.#looked) / 1000, 1);
    this.#looked = now;
    for (const client of this.#clients) {
      client.due += this.rate * client.share(Date.now() / 1000) * seconds;
      for (; client.due >= 1; client.due -= 1) if (this.#underWay < AT_ONCE) this.#sendOne(client);
    }
  }

  async #sendOne(client) {
    const machine = this.#machines[this.#turn++ % this.#machines.length];
    this.#underWay += 1;
    const answer = await send("fleet", { ...this.#limit, key: client.key, cost: 1 }, { machine: machine.url });
    this.#underWay -= 1;
    // Not of a start before the last one.
    if (this.#clients.includes(client)) this.#onAnswer({ machine, client, answer });
  }
}
