"use strict";

// Functions that the scripts of the pages have in common.
const byId = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const tableRow = (head, ...cells) =>
  element("tr", {}, element("th", { scope: "row" }, head), ...cells);

