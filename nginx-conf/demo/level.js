// How much quota is left between two answers: never more than there is, and right again with each answer.

import { ALGORITHMS, unitsPerSecond } from "./algorithms.js";

export function level({ config, answer, at }, now) {
  const { limit, remaining, reset } = answer;
  const seconds = (now - at) / 1000;
  switch (ALGORITHMS[config.algorithm].refill) {
    case "evenly":
      return Math.min(limit, remaining + seconds * unitsPerSecond(config));
    case "at once":
      return seconds < reset ? remaining : limit;
    default:
      return remaining;
  }
}

// Whether the answer to a check fits what is known. Answers are rounded down, so that what is known may be more exact.
export const agrees = (known, { remaining }, sentAt, now) =>
  level(known, sentAt) < remaining + 1 && level(known, now) >= remaining;

// The seconds until the quota is whole.
export const untilWhole = ({ answer, at }, now) => Math.max(0, Math.ceil(answer.reset - (now - at) / 1000));
