// One configuration: its fields, its level, and what became of its requests.

import { ALGORITHMS, directive } from "./algorithms.js";
import { byId, element, mark, showTally, write } from "./dom.js";
import { noRequests } from "./history.js";
import { agrees, level, untilWhole } from "./level.js";
import { send } from "./request.js";

const WORDS = { passed: "Allowed", delayed: "Delayed", rejected: "Denied", failed: "Failed" };
const KEPT = 100; // rows and marks
const CHECK_EVERY = 500; // ms

export class Panel {
  // The last answer, when it came and to which configuration; null while nothing is known.
  #known = null;
  #tally = noRequests();
  #lastCheck = -Infinity;
  #checking = false;

  constructor(side, initial, onDone, burstSize) {
    this.side = side;
    this.name = `Configuration ${side.toUpperCase()}`;
    this.root = byId("panel").content.cloneNode(true).firstElementChild;
    this.form = this.#find("form");
    this.#prepare(initial);
    this.form.addEventListener("input", () => this.#onChange());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      onDone(this.send(1));
    });
    this.#find("button.burst").addEventListener("click", () => onDone(this.send(burstSize())));
    this.#onChange();
  }

  #find(selector) {
    return this.root.querySelector(selector);
  }

  #prepare(initial) {
    this.root.dataset.side = this.side;
    this.#find(".name").textContent = this.name;
    this.#find(".name").id = `name-${this.side}`;
    this.root.setAttribute("aria-labelledby", `name-${this.side}`);
    this.#find(".scroll").setAttribute("aria-label", `Answers, ${this.name}`);
    const { elements } = this.form;
    elements.algorithm.append(...Object.keys(ALGORITHMS).map((name) => new Option(name, name)));
    for (const [name, value] of Object.entries(initial)) elements[name].value = value;
  }

  get config() {
    return Object.fromEntries(new FormData(this.form));
  }

  isValid() {
    return this.form.reportValidity();
  }

  #onChange() {
    this.#showBurst();
    this.#known = null;
    if (!this.form.checkValidity()) return;
    const { config } = this;
    write(this.#find(".directive"), directive(config));
    write(this.#find(".about"), ALGORITHMS[config.algorithm].about);
    this.#check();
  }

  #showBurst() {
    const { burst, algorithm } = this.form.elements;
    const { burst: name, least } = ALGORITHMS[algorithm.value];
    burst.disabled = name === null;
    burst.closest("label").hidden = name === null;
    if (name === null) return;
    burst.min = least;
    write(this.#find(".burst-name"), name === "capacity" ? "Capacity" : "Burst");
  }

  // Sends so many requests at once; the promise is of their answers, or of none if they were cleared meanwhile.
  async send(number) {
    if (!this.isValid()) return { name: this.name, answers: [] };
    const { config } = this;
    const tally = this.#tally;
    const answers = await Promise.all(Array.from({ length: number }, () => this.#sendOne(config)));
    return { name: this.name, answers: tally === this.#tally ? answers : [] };
  }

  async #sendOne(config) {
    const item = element("li");
    this.#keep(".strip", item);
    const tally = this.#tally;
    const answer = await send(this.side, config);
    item.className = answer.outcome;
    this.#learn(config, answer);
    if (tally === this.#tally) this.#show(answer);
    return answer;
  }

  // Reads the state, which spends nothing. An answer to a request that came meanwhile is newer, and stays.
  async #check() {
    const { config } = this;
    const known = this.#known;
    const sentAt = performance.now();
    this.#checking = true;
    this.#lastCheck = sentAt;
    const answer = await send(this.side, config, { cost: "0" });
    this.#checking = false;
    if (this.#known !== known || (known && agrees(known, answer, sentAt, performance.now()))) return;
    this.#learn(config, answer);
  }

  // A delayed answer was decided before its delay: it does not show the present state.
  #learn(config, answer) {
    const isCurrent = JSON.stringify(config) === JSON.stringify(this.config);
    if (!isCurrent || answer.limit === null || answer.outcome === "delayed") return;
    this.#known = { config, answer, at: performance.now() };
  }

  #show(answer) {
    this.#tally[answer.outcome] += 1;
    showTally(this.#find(".tally"), this.#tally);
    write(this.#find(".answer"), answer.text);
    const wait = answer.outcome === "delayed" ? answer.took : answer.retryAfter;
    const row = element("tr");
    row.append(element("td", `${WORDS[answer.outcome]} ${answer.status || ""}`, answer.outcome));
    for (const value of [answer.limit, answer.remaining, answer.reset, wait, answer.source]) {
      row.append(element("td", String(value ?? "")));
    }
    this.#keep("tbody", row);
  }

  // The newest first in the table, last in the strip.
  #keep(selector, child) {
    const list = this.#find(selector);
    const newestFirst = selector === "tbody";
    if (newestFirst) list.prepend(child);
    else list.append(child);
    if (list.children.length > KEPT) (newestFirst ? list.lastElementChild : list.firstElementChild).remove();
  }

  clear() {
    this.#tally = noRequests();
    showTally(this.#find(".tally"), this.#tally);
    this.#find(".strip").replaceChildren();
    this.#find("tbody").replaceChildren();
    write(this.#find(".answer"), "none yet");
  }

  // Once for each frame.
  tick(now) {
    const left = this.#known && level(this.#known, now);
    this.#draw(left, now);
    const isWhole = left !== null && left >= this.#known.answer.limit && untilWhole(this.#known, now) === 0;
    const isDue = now - this.#lastCheck > CHECK_EVERY && !this.#checking;
    if (isDue && !isWhole && this.form.checkValidity()) this.#check();
  }

  #draw(left, now) {
    const meter = this.#find(".level");
    const limit = this.#known?.answer.limit;
    this.#find(".fill").style.transform = `scaleX(${left === null ? 0 : left / limit})`;
    const reading = left === null ? "–" : `${Math.floor(left)} of ${limit}`;
    write(this.#find(".reading"), reading);
    if (left !== null) {
      mark(meter, "aria-valuemax", limit);
      mark(meter, "aria-valuenow", Math.floor(left));
    }
    mark(meter, "aria-valuetext", left === null ? "unknown" : reading);
    const seconds = left === null ? 0 : untilWhole(this.#known, now);
    write(this.#find(".forecast"), this.#forecast(left, seconds));
  }

  #forecast(left, seconds) {
    if (left === null) return "";
    return seconds === 0 ? "The quota is whole." : `Whole again in ${seconds} s.`;
  }
}
