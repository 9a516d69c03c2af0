const EVERY = 1000;    // ms between two updates
const PATIENCE = 4000; // ms for an answer
const CHART = 120;     // s that a chart shows
const RECENT = 5;      // s over which rates are taken
const LONG = 60;       // s over which errors are counted
const KINDS = ["passed", "rejected", "undecided"]; // what may become of a request

const samples = [];    // the counters of the last CHART seconds, the oldest first
const rows = { limits: new Map(), idle: new Map(), nodes: new Map() };
let lostSince = null, lostBecause = "", timer = 0, loading = false;

// Numbers as text.
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const number = (value) => (value < 10 ? fine : whole).format(value);
const rate = (value) => value === null ? "–" : `${number(value)}/s`;
const clock = (time) => new Date(time).toLocaleTimeString("en-GB");
const duration = (seconds) => seconds < 0.001 ? `${whole.format(seconds * 1e6)} µs`
  : seconds < 1 ? `${number(seconds * 1e3)} ms` : `${number(seconds)} s`;
const MEGABYTE = 1048576;
const size = (bytes) => `${fine.format(bytes / MEGABYTE)} MB`;

// The numbers that are shown of a limit.
function limitOf({ requests: r, decisions: d }) {
  return {
    passed: r.passed + r.delayed + r.delayed_dry_run + r.rejected_dry_run,
    rejected: r.rejected,
    delayed: r.delayed,
    dryRun: r.rejected_dry_run,
    undecided: r.error_passed + r.error_rejected,
    lease: d.lease,
    cache: d.cache,
    local: d.local,
  };
}

// The oldest sample that is not older than so many seconds, a little more for late answers.
const sampleOf = (seconds) => samples.find(({ at }) => newest().at - at <= (seconds + 0.5) * 1000);
const newest = () => samples[samples.length - 1];

// By how much a counter has grown in so many seconds, and how fast; null before the second sample.
const growth = (seconds, pick) => pick(newest()) - pick(sampleOf(seconds));
function speed(seconds, pick) {
  const time = (newest().at - sampleOf(seconds).at) / 1000;
  return time > 0 ? growth(seconds, pick) / time : null;
}

function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Adds and removes rows, so that the table has one for each of these names.
function arrange(known, table, names, make) {
  for (const [name, row] of known) {
    if (!names.includes(name)) {
      row.body.remove();
      known.delete(name);
    }
  }
  for (const name of names) {
    if (!known.has(name)) {
      const row = make(name);
      known.set(name, row);
      table.append(row.body);
    }
  }
}

function makeRow(name, cells, ...more) {
  const columns = Array.from({ length: cells }, () => element("td"));
  const body = element("tbody", {}, tableRow(name, ...columns));
  const below = element("td", { colSpan: cells + 1 }, ...more);
  if (more.length > 0) body.append(element("tr", { className: "more" }, below));
  return { body, columns };
}

function makeLimit(name) {
  const paths = KINDS.map((kind) => svg("path", { class: kind }));
  const picture = svg("svg",
    { viewBox: `0 0 ${CHART} 100`, preserveAspectRatio: "none", role: "img" }, ...[...paths].reverse());
  const peak = element("span");
  const figure = element("figure", {}, picture, element("figcaption", {},
    element("span", { textContent: "2 minutes ago" }), peak,
    element("span", { textContent: "now" })));
  const note = element("div", { className: "note" });
  return { ...makeRow(name, 3, figure, note), paths, picture, peak, note };
}

function makeNode(name) {
  const note = element("div", { className: "note" });
  return { ...makeRow(name, 3, note), note };
}

// Writes only what has changed, so that a selection and a screen reader stay where they are.
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function showLimit(name, row) {
  const of = (key) => (sample) => sample.limits[name]?.[key] ?? 0;
  const now = newest().limits[name];
  const all = KINDS.reduce((sum, kind) => sum + now[kind], 0);
  KINDS.forEach((kind, column) => write(row.columns[column], rate(speed(RECENT, of(kind)))));
  const notes = [["delayed", "delayed"], ["would be rejected, but for the dry run", "dryRun"],
    ["decided from leases", "lease"],
    ["decided from the deny cache", "cache"],
    ["decided on this machine", "local"]]
    .map(([what, key]) => [what, speed(RECENT, of(key))])
    .filter(([, value]) => value > 0)
    .map(([what, value]) => `${rate(value)} ${what}`);
  notes.push(`${whole.format(now.rejected)} of ${whole.format(all)} rejected in total`);
  write(row.note, notes.join(" · "));
  draw(row, name, of);
}

// The changes between each two samples, and where they are in a chart.
const place = ({ at }) => Math.max(0, CHART - (newest().at - at) / 1000);
const steps = (between) => samples.slice(1).map((after, index) => {
  const before = samples[index];
  return { from: place(before), to: place(after), ...between(before, after) };
});

// Draws how many requests there were of each kind, one above the other.
function draw(row, name, of) {
  const speeds = steps((before, after) => {
    const time = (after.at - before.at) / 1000;
    let sum = 0;
    return { tops: KINDS.map((kind) => sum += (of(kind)(after) - of(kind)(before)) / time) };
  });
  const peak = Math.max(0, ...speeds.map(({ tops }) => tops.at(-1)));
  row.paths.forEach((path, kind) => {
    const sides = speeds.map(({ from, to, tops }) => {
      const y = 100 - 92 * tops[kind] / Math.max(peak, 1);
      return `L${from.toFixed(2)} ${y.toFixed(1)}H${to.toFixed(2)}`;
    });
    path.setAttribute("d", sides.length ? `M${speeds[0].from} 100${sides.join("")}V100Z` : "");
  });
  const text = `peak ${rate(peak)}`;
  write(row.peak, text);
  row.picture.setAttribute("aria-label", `Requests to ${name} in the last 2 minutes, ${text}`);
}

// The time within which a part of what is in a histogram was done between two samples, by its
// buckets; null if that was nothing.
function quantile(part, histogram, before, after) {
  const [old, now] = [before[histogram], after[histogram]];
  const wanted = part * (now.count - old.count);
  if (wanted <= 0) return null;
  const bounds = Object.keys(now.buckets).filter((bound) => bound !== "+Inf").sort((a, b) => a - b);
  let low = 0, below = 0;
  for (const bound of bounds) {
    const within = now.buckets[bound] - old.buckets[bound];
    if (within >= wanted) return low + (bound - low) * (wanted - below) / (within - below);
    [low, below] = [Number(bound), within];
  }
  return low;
}
const recently = (part, histogram) => quantile(part, histogram, sampleOf(RECENT), newest());

// Draws the time until a decision, second by second, from 10 µs to 1 s on a logarithmic scale; a
// second without a decision is a gap.
function showLatency() {
  const both = steps((before, after) =>
    ({ p50: quantile(0.5, "waits", before, after), p99: quantile(0.99, "waits", before, after) }));
  const slowest = Math.max(0, ...both.map(({ p99 }) => p99 ?? 0));
  for (const name of ["p50", "p99"]) {
    let path = "", isOpen = false;
    for (const { from, to, [name]: time } of both) {
      const y = -20 * Math.log10(Math.min(Math.max(time, 1e-5), 1));
      const start = `${isOpen ? "L" : "M"}${from.toFixed(2)} ${y.toFixed(1)}`;
      if (time !== null) path += `${start}H${to.toFixed(2)}`;
      isOpen = time !== null;
    }
    document.querySelector(`#latency .${name}`).setAttribute("d", path);
  }
  const text = slowest > 0 ? `99 % within ${duration(slowest)} at most` : "no decisions";
  write(byId("slowest"), text);
  byId("latency").setAttribute("aria-label",
    `Time until a decision in the last 2 minutes, ${text}`);
}

// All limits together.
const sum = (kind) => ({ limits }) =>
  Object.values(limits).reduce((total, limit) => total + limit[kind], 0);

function showSummary() {
  const speeds = Object.fromEntries(KINDS.map((kind) => [kind, speed(RECENT, sum(kind)) ?? 0]));
  const all = speeds.passed + speeds.rejected + speeds.undecided;
  write(byId("requests"), rate(all));
  for (const kind of ["rejected", "undecided"]) {
    const share = all > 0 && speeds[kind] > 0 ? ` ${number(100 * speeds[kind] / all)} %` : "";
    write(byId(kind), rate(speeds[kind]) + share);
    byId(kind).className = speeds[kind] > 0 ? `some-${kind}` : "";
  }
  for (const [id, part] of [["p50", 0.5], ["p99", 0.99]]) {
    const time = recently(part, "waits");
    write(byId(id), time === null ? "–" : duration(time));
  }
  showRedis();
}

// The worst state of the servers that are in use.
function showRedis() {
  const states = Object.values(newest().nodes).map(stateOf).filter(([state]) => state !== "unused");
  const worst = ["down", "partly", "up"].find((name) => states.some(([state]) => state === name));
  const those = states.filter(([state]) => state === worst);
  const part = states.length > 1 && worst !== "up" ? ` ${those.length} of ${states.length}` : "";
  byId("redis").className = worst ?? "";
  write(byId("redis"), worst ? those[0][1] + part : "not in use");
}

function stateOf({ connections: { ready, connecting }, breaker_open: open, node_slow: slow }) {
  if (ready + connecting === 0) return ["unused", "not in use"];
  if (ready === 0) return ["down", "✕ down"];
  if (open) return ["partly", "! not used by all workers"];
  return slow ? ["partly", "! slow"] : ["up", "✓ up"];
}

function showNode(name, row) {
  const of = (pick) => (sample) => sample.nodes[name] ? pick(sample.nodes[name]) : 0;
  const node = newest().nodes[name];
  const [count, sum] = [of((n) => n.decision_seconds.count), of((n) => n.decision_seconds.sum)];
  const [state, text] = stateOf(node);
  row.columns[0].className = state;
  write(row.columns[0], text);
  write(row.columns[1], rate(speed(RECENT, count)));
  const decided = growth(RECENT, count);
  write(row.columns[2], decided > 0 ? duration(growth(RECENT, sum) / decided) : "–");
  const { ready, connecting } = node.connections;
  const recent = (family) => Object.keys(node[family])
    .map((kind) => [kind, growth(LONG, of((n) => n[family][kind]))])
    .filter(([, count]) => count > 0)
    .map(([kind, count]) => `${whole.format(count)} ${kind}`)
    .join(", ");
  const counts = [["errors", "errors"], ["attempts to connect", "connection_attempts"],
    ["topology queries", "topology_queries"]]
    .map(([what, family]) => [what, recent(family)])
    .filter(([what, counts]) => counts || what === "errors")
    .map(([what, counts]) => `${what}: ${counts || "none"}`);
  write(row.note,
    `${ready} connected, ${connecting} not; in the last minute ${counts.join("; ")}`);
}

function showMachine() {
  const { waits, memory, local, evictions, noRoom, build } = newest();
  const speedNow = speed(RECENT, (sample) => sample.waits.count);
  write(byId("waits"), `${rate(speedNow)}, ${whole.format(waits.count)} in total`);
  const lag = recently(0.99, "lags");
  write(byId("lags"), lag === null ? "–" : `99 % within ${duration(lag)}`);
  const short = [[evictions, "clients evicted"], [noRoom, "requests whose state did not fit"]]
    .filter(([count]) => count > 0)
    .map(([count, what]) => `; ${whole.format(count)} ${what}`);
  write(byId("local"), `${fine.format(local / MEGABYTE)} of ${size(local + memory.free)}${short.join("")}`);
  write(byId("reserved"), `${size(memory.used - local)}, reserved`);
  write(byId("build"), `rate_limit_redis ${build.version}, NGINX ${build.nginx}`);
}

// Limits with requests in the chart's time are shown, the others are folded.
function showLimits() {
  const { limits } = newest();
  const all = (name) => (sample) =>
    KINDS.reduce((total, kind) => total + (sample.limits[name]?.[kind] ?? 0), 0);
  const isActive = (name) => growth(CHART, all(name)) > 0;
  const active = Object.keys(limits).filter(isActive);
  const idle = Object.keys(limits).filter((name) => !isActive(name));
  arrange(rows.limits, byId("limits"), active, makeLimit);
  arrange(rows.idle, byId("idle-limits"), idle, (name) => makeRow(name, 3));
  rows.limits.forEach((row, name) => showLimit(name, row));
  rows.idle.forEach((row, name) =>
    KINDS.forEach((kind, column) => write(row.columns[column], whole.format(limits[name][kind]))));
  byId("limits").hidden = active.length === 0;
  byId("no-limits").hidden = active.length > 0;
  write(byId("no-limits"),
    idle.length > 0 ? "No requests in the last 2 minutes." : "Nothing is limited.");
  byId("idle").hidden = idle.length === 0;
  write(byId("idle-title"), idle.length === 1 ? "1 idle limit" : `${idle.length} idle limits`);
}

function show() {
  arrange(rows.nodes, byId("nodes"), Object.keys(newest().nodes), makeNode);
  rows.nodes.forEach((row, name) => showNode(name, row));
  showSummary();
  showLimits();
  showLatency();
  showMachine();
}

// Adds a sample. If a counter is less than before, all counters were reset.
function addSample(json) {
  const limits = Object.fromEntries(
    Object.entries(json.limits).map(([name, limit]) => [name, limitOf(limit)]));
  const sample = {
    at: performance.now(), limits, nodes: json.nodes, waits: json.decision_seconds,
    lags: json.worker_lag_seconds, memory: json.shared_memory_bytes,
    local: json.local_state_bytes, evictions: json.shared_memory_evictions,
    noRoom: json.shared_memory_no_room, build: json.build_info,
  };
  if (samples.length && sample.waits.count < newest().waits.count) samples.length = 0;
  samples.push(sample);
  while (sample.at - samples[0].at > CHART * 1000) samples.shift();
}

async function load() {
  const response = await fetch("?format=json",
    { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  if (!response.ok) throw new Error(`the server answers ${response.status}`);
  return response.json();
}

function showState() {
  const state = byId("state");
  document.body.classList.toggle("stale", lostSince !== null);
  state.classList.toggle("lost", lostSince !== null);
  write(state, lostSince === null ? "Live, of all workers of this machine"
    : `Not reachable since ${clock(lostSince)}${lostBecause}; trying again`);
}

async function update() {
  if (loading || document.hidden) return;
  loading = true;
  clearTimeout(timer);
  try {
    addSample(await load());
    lostSince = null;
    show();
  } catch (error) {
    lostSince ??= Date.now();
    lostBecause = error.message.startsWith("the server") ? ` (${error.message})` : "";
  }
  showState();
  loading = false;
  timer = setTimeout(update, lostSince === null ? EVERY : 3 * EVERY);
}

// Where the configuration names one form, there is no other.
async function checkForms() {
  const link = byId("prometheus");
  const response = await fetch(link.href, { method: "HEAD" });
  link.hidden = !response.headers.get("Content-Type").startsWith("text/plain");
}

write(byId("machine"), ` of ${location.host}`);
document.title = byId("machine").parentElement.textContent;
checkForms();
document.addEventListener("visibilitychange", update);
update();
