// The fleet: traffic through all its machines, what becomes of it, and how the machines are.

import { banner } from "./banner.js";
import { Chart, peakOf } from "./chart.js";
import { ALGORITHMS, directive, quota, unitsPerSecond } from "./algorithms.js";
import { History } from "./history.js";
import { Machine } from "./machine.js";
import { byId, element, showTally, write } from "./dom.js";
import { PRESETS } from "./presets.js";
import { Traffic } from "./traffic.js";

const DRAW_EVERY = 200; // ms
const LOCAL_FOR = 3000; // ms for which a decision without Redis is worth telling

const rateField = byId("rate");

export class Fleet {
  #machines;
  #traffic;
  history = new History();
  #byClient = new Map();
  #chart = new Chart(byId("chart"));
  #preset = PRESETS[0];
  #left = null; // the budget of the first client, as its last answer told it
  #localAt = -Infinity;
  #drawnAt = -Infinity;

  constructor(urls) {
    this.#machines = urls.map((url) => new Machine(url));
    this.#traffic = new Traffic(this.#machines, (result) => this.#learn(result));
    byId("presets").append(...PRESETS.map((preset) => this.#button(preset)));
    byId("start").addEventListener("click", () => this.#toggle());
    rateField.addEventListener("input", () => this.#setRate());
    this.#choose(this.#preset);
  }

  #button(preset) {
    const button = element("button", preset.name);
    button.type = "button";
    button.addEventListener("click", () => {
      this.#choose(preset);
      this.#start();
    });
    return button;
  }

  #choose(preset) {
    this.#preset = preset;
    for (const button of byId("presets").children) {
      button.setAttribute("aria-pressed", button.textContent === preset.name);
    }
    rateField.value = preset.rate;
    this.#setRate();
    write(byId("fleet-directive"), directive({ ...preset.limit, cost: "1" }));
    this.#left = null;
    for (const { history } of [this, ...this.#machines]) history.forgetTotal();
    this.#byClient = new Map(preset.clients.map(({ name }) => [name, new History()]));
    this.#draw(performance.now());
  }

  #setRate() {
    this.#traffic.rate = rateField.valueAsNumber;
    write(byId("rate-shown"), `${rateField.value} a second`);
  }

  #start() {
    this.#traffic.start(this.#preset);
    write(byId("start"), "Stop");
  }

  #toggle() {
    if (!this.#traffic.isRunning) {
      this.#start();
      return;
    }
    this.#traffic.stop();
    write(byId("start"), "Start");
  }

  #learn({ machine, client, answer }) {
    const now = performance.now();
    for (const history of [this.history, machine.history, this.#byClient.get(client.name)]) {
      history?.add(answer.outcome, now);
    }
    if (answer.source === "local") this.#localAt = now;
    if (client.name === this.#preset.clients[0].name && answer.budget) this.#left = { ...answer.budget, at: now };
  }

  // Once for each frame.
  tick(now) {
    if (now - this.#drawnAt >= DRAW_EVERY) this.#draw(now);
  }

  #draw(now) {
    this.#drawnAt = now;
    this.#showTraffic(now, this.#left?.perSecond ?? unitsPerSecond(this.#preset.limit));
    this.#showBanner(now);
    this.#showBudget(now);
  }

  #showTraffic(now, limit) {
    const steps = this.history.rates(now);
    const top = 1.1 * Math.max(peakOf(steps), 1.5 * limit);
    this.#chart.draw(steps, now, limit, top);
    const each = this.#byClient.size > 1 ? " a client" : "";
    write(byId("limit-shown"), `limit ${Number(limit.toFixed(2))}/s${each}, peak ${peakOf(steps)}/s`);
    const peaks = this.#machines.map(({ history }) => peakOf(history.rates(now)));
    for (const machine of this.#machines) machine.show(now, limit, 1.1 * Math.max(limit, ...peaks));
    showTally(byId("fleet-tally"), this.history.total);
  }

  #showBanner(now) {
    const isLocal = now - this.#localAt < LOCAL_FOR;
    const { isRunning } = this.#traffic;
    const [kind, text] = banner(this.#machines, { isRunning, isLocal, about: this.#preset.about });
    byId("banner").className = kind;
    write(byId("banner"), text);
  }

  // The quota that has come back since the last answer is added where it comes back evenly.
  #budget(now, whole) {
    if (this.#left === null) return whole;
    const { remaining, perSecond, at } = this.#left;
    const isEven = ALGORITHMS[this.#preset.limit.algorithm].refill === "evenly";
    return Math.min(whole, Math.floor(remaining + (isEven ? perSecond * (now - at) / 1000 : 0)));
  }

  #showBudget(now) {
    const whole = quota(this.#preset.limit);
    const left = this.#budget(now, whole);
    byId("budget-fill").style.transform = `scaleX(${left / whole})`;
    write(byId("budget-reading"), `Budget of ${this.#preset.clients[0].name}: ${left} of ${whole} left`);
    const passed = ([name, { total }]) => {
      const all = Object.values(total).reduce((sum, number) => sum + number, 0);
      return `${name}: ${total.passed + total.delayed} of ${all} passed`;
    };
    write(byId("clients"), this.#byClient.size > 1 ? [...this.#byClient].map(passed).join(" · ") : "");
  }
}
