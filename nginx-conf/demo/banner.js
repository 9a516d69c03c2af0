// The sentence or two that say what is going on, and whether it is good.

const names = (machines) => machines.map(({ name }) => name).join(" and ");

export function banner(machines, { isRunning, isLocal, about }) {
  const those = (state) => machines.filter((machine) => machine.state === state);
  const gone = those("gone");
  if (gone.length > 0) return ["bad", `NGINX ${names(gone)} does not answer.`];
  if (those("away").length > 0) {
    return ["bad", "Redis is away: each machine decides by itself, with the whole budget. The key s in the terminal starts it."];
  }
  if (those("silent").length > 0) {
    return ["bad", "Redis does not reply: each machine decides by itself, with the whole budget. The key s in the terminal lets it go on."];
  }
  if (isRunning && isLocal) {
    return ["odd", "Redis is back. What a machine let through by itself still counts there, until it is regained."];
  }
  return isRunning ? ["good", about] : ["idle", "No traffic. Choose some, and watch one budget hold for all machines."];
}
