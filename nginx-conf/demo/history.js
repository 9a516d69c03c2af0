// The outcomes of requests lately, in steps of time.

export const OUTCOMES = ["passed", "delayed", "rejected", "failed"];
export const STEP = 500; // ms
export const STEPS = 60;

export const noRequests = () => Object.fromEntries(OUTCOMES.map((outcome) => [outcome, 0]));
const stepOf = (time) => Math.floor(time / STEP);

export class History {
  #steps = new Map(); // the counts of each step that has some
  total = noRequests();

  add(outcome, time) {
    const step = stepOf(time);
    if (!this.#steps.has(step)) this.#steps.set(step, noRequests());
    this.#steps.get(step)[outcome] += 1;
    this.total[outcome] += 1;
    for (const old of this.#steps.keys()) if (old < step - STEPS) this.#steps.delete(old);
  }

  forgetTotal() {
    this.total = noRequests();
  }

  // The requests a second of each step until this time, the oldest first.
  rates(time) {
    const last = stepOf(time);
    const perSecond = (counts) =>
      Object.fromEntries(OUTCOMES.map((outcome) => [outcome, (counts?.[outcome] ?? 0) * 1000 / STEP]));
    return Array.from({ length: STEPS + 1 }, (_, index) => perSecond(this.#steps.get(last - STEPS + index)));
  }
}
