const PATIENCE = 15000; // ms for an answer
const CHANGE = { get: "GET", reset: "DELETE", patch: "PATCH", set: "PUT" };
let limits = [];    // as the address lists them
let client = null;  // the arguments of the client that is shown
let looks = 0;      // numbers the requests, of which the latest is shown

const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });
const units = (number) => whole.format(number);

// A time in seconds as people say it.
function duration(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "m"]];
  let rest = seconds < 60 ? seconds : Math.ceil(seconds), text = [];
  for (const [length, name] of parts) {
    if (rest >= length) text.push(`${Math.floor(rest / length)} ${name}`);
    rest %= length;
  }
  if (rest > 0 || text.length === 0) text.push(`${fine.format(rest)} s`);
  return text.slice(0, 2).join(" ");
}

const say = (text) => { byId("state").textContent = text; };
const complain = (text) => { byId("error").textContent = text; };

// Sends a request to the page's own address. Arguments that are undefined are left out.
async function request(method, given) {
  const used = Object.entries(given).filter(([, value]) => value !== undefined && value !== "");
  const query = used.map(([name, value]) =>
    value === true ? name : `${name}=${encodeURIComponent(value)}`).join("&");
  const response = await fetch(`?${query}`, {
    method, headers: { Accept: "application/json" }, cache: "no-store",
    signal: AbortSignal.timeout(PATIENCE),
  });
  const isJson = (response.headers.get("Content-Type") ?? "").startsWith("application/json");
  const answer = isJson ? await response.json() : {};
  if (!response.ok) throw new Error(answer.error ?? `${response.status} ${response.statusText}`);
  return answer;
}

// Runs a step that asks the server; what it throws is shown.
async function attempt(what, step) {
  complain("");
  say(`${what}…`);
  try {
    await step();
  } catch (error) {
    say("");
    complain(error.name === "TimeoutError" ? "no answer" : error.message);
  }
}

const limitOf = (name) => limits.find((limit) => limit.name === name);
const isVariable = (value) => typeof value === "string" && value.includes("$");
const burstOf = (limit) => ["capacity", "burst"].find((name) => name in limit);

// Shows the fields that a limit needs.
function showLimit() {
  const limit = limitOf(byId("limit").value);
  if (!limit) return;
  const name = burstOf(limit);
  byId("of-base-rate").hidden = !isVariable(limit.rate);
  byId("of-base-burst").hidden = !(name && isVariable(limit[name]));
  byId("base-burst-name").textContent = `${name === "burst" ? "Burst" : "Capacity"} of this client`;
  showTop(limit.name);
}

async function showTop(name) {
  const { top } = await request("GET", { limit: name, top: true }).catch(() => ({ top: [] }));
  if (byId("limit").value !== name) return;
  byId("top").hidden = top.length === 0;
  byId("top-title").textContent = `Rejected most by ${name}`;
  byId("top-rows").replaceChildren(...top.map(({ key, rejected, error }) => {
    // With key_hmac it is the beginning of an HMAC, and no key to look a client up by.
    const isKey = !/^[0-9a-f]{16}\.{3}$/.test(key);
    const look = isKey ? element("button", { type: "button", textContent: key }) : key;
    if (isKey) look.addEventListener("click", () => { byId("key").value = key; byId("find").requestSubmit(); });
    const least = error > 0 ? `${units(rejected - error)} to ${units(rejected)}` : units(rejected);
    return tableRow(look, element("td", { textContent: least }));
  }));
}

function showLimits() {
  byId("limit").replaceChildren(...limits.map(({ name }) => new Option(name, name)));
  byId("limits").replaceChildren(...limits.map((limit) => {
    const cells = [
      ["text", limit.algorithm], ["", limit.rate], ["", limit[burstOf(limit)] ?? "–"],
      ["", limit.block > 0 ? duration(limit.block) : "–"], ["", limit.override ? "yes" : "no"],
      ["", limit.store],
    ].map(([className, text]) => element("td", { className, textContent: text }));
    return tableRow(limit.name, ...cells);
  }));
  if (limits.length === 0) say("There is no limit.");
}

function describe({ rate, capacity, burst, ends }) {
  const most = capacity !== undefined ? `, capacity ${units(capacity)}`
    : burst !== undefined ? `, burst ${units(burst)}` : "";
  const until = ends === null ? "until it is removed" : `until ${new Date(ends * 1000).toLocaleString()}`;
  return `${rate}${most}, ${until}`;
}

// Why the client passes or does not.
function verdict(state) {
  if (state.blocked_for > 0) return "blocked";
  if (state.retry_after > 0) return `rejected: the quota is spent; passes in ${duration(state.retry_after)}`;
  return "passes";
}

const within = (seconds) => seconds > 0 ? `in ${duration(seconds)}` : "now";

function showClient(state) {
  const limit = limitOf(state.limit);
  byId("client-title").textContent = `${state.key} of ${state.limit}`;
  byId("now").textContent = verdict(state);
  byId("remaining").textContent = `${units(state.remaining)} of ${units(state.quota)}`;
  byId("reset").textContent = within(state.reset);
  byId("blocked").textContent = state.blocked_for > 0 ? `for ${duration(state.blocked_for)}` : "no";
  byId("debt").textContent = units(state.debt);
  byId("leased").textContent = state.leased === null ? "not known" : units(state.leased);
  byId("override").textContent = state.override ? describe(state.override) : "none";
  byId("overrides").hidden = !limit?.override;
  byId("no-overrides").hidden = Boolean(limit?.override);
  const name = limit && burstOf(limit);
  byId("of-burst").hidden = !name;
  byId("burst-name").textContent = name === "burst" ? "Burst" : "Capacity";
  byId("remove-override").disabled = !state.override;
  byId("client").hidden = false;
}

// Asks about the client that is shown, or changes it.
async function manage(method, change, what) {
  const look = ++looks;
  await attempt(what, async () => {
    const state = await request(method, { ...client, ...change });
    if (look !== looks) return;
    showClient(state);
    const holds = state.everywhere_in > 0
      ? `holds on all machines in ${duration(state.everywhere_in)}` : "holds on all machines";
    const clock = new Date().toLocaleTimeString("en-GB");
    say(method === CHANGE.get ? `As of ${clock}` : `Changed at ${clock}; ${holds}`);
  });
}

// Resolves to whether the user confirms.
function confirmed(question) {
  const dialog = byId("confirm");
  byId("question").textContent = question;
  dialog.returnValue = "no";
  dialog.showModal();
  byId("no").focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

// Has a button change the client, after a question if there is one; `read` gives the change, or
// nothing if a field is empty.
function onChange(id, method, read, ask) {
  byId(id).addEventListener("click", async () => {
    const change = read();
    if (!change) return;
    const who = byId("client-title").textContent;
    if (ask && !await confirmed(ask(change, who))) return;
    await manage(method, change, "Changing");
  });
}

// The value of a field, which must not be empty.
function needed(id) {
  const field = byId(id), value = field.value.trim();
  if (!value) {
    complain("This needs a value.");
    field.focus();
  }
  return value;
}

function override() {
  const rate = needed("rate"), limit = limitOf(client.limit);
  if (!rate) return undefined;
  const name = burstOf(limit);
  return { rate, ...(name && { [name]: byId("burst").value.trim() }), for: byId("for").value.trim() };
}

onChange("reset-quota", CHANGE.reset, () => ({}),
  (_, who) => `Make the quota of ${who} whole again, and end its block and its debt?`);
onChange("grant", CHANGE.patch, () => {
  const grant = needed("units");
  return grant && { grant };
});
onChange("block", CHANGE.patch, () => {
  const block = needed("block-time");
  return block && { block };
}, ({ block }, who) => `Reject all requests of ${who} for ${block}?`);
onChange("unblock", CHANGE.patch, () => ({ block: "0" }));
onChange("set-override", CHANGE.set, override, (change, who) => {
  const until = change.for ? `for ${change.for}` : "until that is removed";
  return `Let ${who} have ${change.rate} ${until}?`;
});
onChange("remove-override", CHANGE.reset, () => ({ override: true }),
  (_, who) => `Remove the override of ${who}?`);

byId("limit").addEventListener("change", showLimit);
byId("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const limit = limitOf(byId("limit").value), name = burstOf(limit);
  client = { limit: limit.name, key: byId("key").value };
  if (isVariable(limit.rate)) client.base_rate = byId("base-rate").value.trim();
  if (name && isVariable(limit[name])) client[`base_${name}`] = byId("base-burst").value.trim();
  history.replaceState(null, "", `?${new URLSearchParams(client)}`.replaceAll("+", "%20"));
  byId("client").hidden = true;
  manage(CHANGE.get, {}, "Looking up");
});

// The address may name a client.
function showAddressed() {
  const given = new URLSearchParams(location.search.replaceAll("+", "%2B"));
  if (limitOf(given.get("limit"))) byId("limit").value = given.get("limit");
  showLimit();
  byId("base-rate").value = given.get("base_rate") ?? "";
  byId("base-burst").value = given.get("base_capacity") ?? given.get("base_burst") ?? "";
  if (given.get("key")) {
    byId("key").value = given.get("key");
    byId("find").requestSubmit();
  }
}

byId("machine").textContent = ` at ${location.host}`;
attempt("Loading", async () => {
  ({ limits } = await request("GET", {}));
  say("");
  showLimits();
  showAddressed();
});
