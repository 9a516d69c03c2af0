// Elements, and changes of them.

export const byId = (id) => document.getElementById(id);

export function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

// Writes only what has changed: a screen reader is not disturbed, and a selection stays.
export function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export function mark(target, name, value) {
  if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value);
}

// Numbers by outcome. That requests have failed is only shown where some have.
export function showTally(tally, numbers) {
  for (const [outcome, number] of Object.entries(numbers)) {
    const entry = tally.querySelector(`.${outcome}`);
    write(entry.querySelector("b"), String(number));
    if (outcome === "failed") entry.hidden = number === 0;
  }
}
