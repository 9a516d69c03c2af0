// The page: the fleet, and two panels with the buttons that send to both.

import { byId } from "./dom.js";
import { Fleet } from "./fleet.js";
import { Panel } from "./panel.js";

const size = byId("size");
const burstSize = () => (size.reportValidity() ? size.valueAsNumber : 0);

const panels = [
  new Panel("a", { algorithm: "token_bucket", n: 10, per: "10s", burst: 10, key: "visitor", cost: 1 }, report, burstSize),
  new Panel("b", { algorithm: "leaky_bucket", n: 10, per: "10s", burst: 4, key: "visitor", cost: 1 }, report, burstSize),
];
byId("panels").append(...panels.map((panel) => panel.root));

function describe({ name, answers }) {
  const count = (outcome) => answers.filter((answer) => answer.outcome === outcome).length;
  const words = [`${count("passed")} allowed`, `${count("delayed")} delayed`, `${count("rejected")} denied`];
  if (count("failed") > 0) words.push(`${count("failed")} failed`);
  const wait = answers.findLast((answer) => answer.retryAfter !== null)?.retryAfter;
  return `${name}: ${words.join(", ")}${wait ? `, retry after ${wait} s` : ""}.`;
}

// One sentence a side when all its answers are there, not one a request.
function report(...sent) {
  const sentences = [];
  sent.forEach(async (promise, index) => {
    const result = await promise;
    if (result.answers.length === 0) return;
    sentences[index] = describe(result);
    byId("summary").textContent = sentences.filter(Boolean).join(" ");
  });
}

function sendToBoth(number) {
  if (panels.every((panel) => panel.isValid())) report(...panels.map((panel) => panel.send(number)));
}

byId("traffic").addEventListener("submit", (event) => {
  event.preventDefault();
  sendToBoth(1);
});
byId("burst").addEventListener("click", () => sendToBoth(burstSize()));
byId("clear").addEventListener("click", () => {
  panels.forEach((panel) => panel.clear());
  byId("summary").textContent = "No request yet.";
});

const fleet = new Fleet((await (await fetch("fleet")).text()).split(" "));

// Not while the page is hidden: a browser draws no frames then.
function draw(now) {
  fleet.tick(now);
  panels.forEach((panel) => panel.tick(now));
  requestAnimationFrame(draw);
}
requestAnimationFrame(draw);
