// Requests a second as bars, sorted by decision from the bottom up, with the limit as a line.

import { OUTCOMES, STEP, STEPS } from "./history.js";

const HEIGHT = 100;

function svg(name, className) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  made.setAttribute("class", className);
  return made;
}

const sum = (rates) => OUTCOMES.reduce((total, outcome) => total + rates[outcome], 0);

export const peakOf = (steps) => Math.max(...steps.map(sum));

export class Chart {
  #bars = OUTCOMES.map((outcome) => svg("path", outcome));
  #line = svg("path", "limit");

  constructor(root) {
    root.setAttribute("viewBox", `0 0 ${STEPS} ${HEIGHT}`);
    root.setAttribute("preserveAspectRatio", "none");
    root.append(...this.#bars, this.#line);
  }

  // `top` is the rate at the upper edge.
  draw(steps, time, limit, top) {
    const height = (rate) => HEIGHT * Math.min(rate / top, 1);
    const shift = (time % STEP) / STEP;
    const paths = OUTCOMES.map(() => "");
    steps.forEach((rates, index) => {
      let foot = HEIGHT;
      OUTCOMES.forEach((outcome, n) => {
        const high = height(rates[outcome]);
        if (high === 0) return;
        paths[n] += `M${(index - shift).toFixed(2)} ${foot.toFixed(1)}v${-high.toFixed(1)}h.85v${high.toFixed(1)}z`;
        foot -= high;
      });
    });
    this.#bars.forEach((bar, n) => bar.setAttribute("d", paths[n]));
    this.#line.setAttribute("d", `M0 ${(HEIGHT - height(limit)).toFixed(1)}H${STEPS}`);
  }
}
