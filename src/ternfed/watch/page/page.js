"use strict";
// The server sends what is new (watch/state.py); this keeps all of it and draws. Text goes in as text, never as HTML.
const runs = new Map();
const COLOURS = 8, PHASES = ["broadcast", "prepare", "train", "upload", "aggregate", "evaluate", "wait", "clients", "push"];
const byId = (id) => document.getElementById(id);
let skew = 0, columns = [];

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "rect", "g"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// ---------------------------------------------------------------- numbers as a person reads them
function size(bytes) {
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (bytes < 1000 || unit === "TB") return `${unit === "B" ? bytes.toFixed(0) : bytes.toFixed(1)} ${unit}`;
    bytes /= 1000;
  }
}
function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}
const number = (value) => (Math.abs(value) >= 1000 ? value.toFixed(0) : String(+value.toPrecision(4)));
const share = (value) => `${+(100 * value).toPrecision(3)}%`;
const scoreText = (run, value) => (run.measure.percent ? `${(100 * value).toFixed(2)}%` : number(value));

// ---------------------------------------------------------------- what came
function take(news) {
  columns = news.columns;
  skew = Date.now() / 1000 - news.now;
  for (const head of news.runs) {
    const before = runs.get(head.id);
    const kept = before && head.from > 0 ? before.rows.slice(0, head.from) : [];
    const rows = kept.concat(head.rounds.map((row) => Object.fromEntries(columns.map((key, at) => [key, row[at]]))));
    runs.set(head.id, { ...head, rows });
  }
}
const colour = (run) => `var(--c${run.id % COLOURS})`;

// ---------------------------------------------------------------- one run in words
function bestOf(run) {
  const judged = run.rows.filter((row) => row.validation !== null);
  const better = (a, b) => (run.measure.higher ? a.validation > b.validation : a.validation < b.validation);
  return judged.reduce((best, row) => (best === null || better(row, best) ? row : best), null);
}
function tile(name, value, note) {
  const inside = make("dd", {}, value);
  if (note) inside.append(make("small", {}, note));
  return make("div", {}, make("dt", {}, name), inside);
}
function nowLine(run) {
  const live = run.live;
  if (!live) return run.state === "stopped" ? "Nobody works on it; it can be resumed." : "";
  const seconds = Math.max(0, Date.now() / 1000 - skew - live.began);
  if (live.phase === "waiting") {
    const there = Object.values(live.clients).filter((state) => state !== "away").length;
    return `Waiting for clients: ${there} of ${Object.keys(live.clients).length} are there.`;
  }
  const what = { broadcast: "broadcast", train: "clients at work", aggregate: "average and evaluation" }[live.phase] || live.phase;
  const done = live.asked ? `, ${live.done} of ${live.asked} clients done` : "";
  return `Round ${live.round}: ${what}${done}, ${duration(seconds)}`;
}
function card(run) {
  const last = run.rows[run.rows.length - 1], best = bestOf(run), tiles = make("dl", { class: "tiles" });
  if (last) {
    const judged = best && best.score !== null ? `${scoreText(run, best.score)} in round ${best.round}, the best by validation` : "";
    tiles.append(tile(run.measure.name, last.score === null ? "not finite" : scoreText(run, last.score), judged));
    const train = last.train_loss === null ? "" : `training ${number(last.train_loss)}`;
    tiles.append(tile("loss", last.loss === null ? "not finite" : number(last.loss), train));
    const times = (fp32, sent) => (sent && fp32 > sent ? `1/${(fp32 / sent).toFixed(1)} of float32` : "");
    tiles.append(tile("uploaded", size(run.up), times(run.up_fp32, run.up)));
    tiles.append(tile("downloaded", size(run.down), times(run.down_fp32, run.down)));
    if (last.changed !== null) tiles.append(tile("flips", share(last.changed), "of the trits, last round"));
    if (last.strategy !== null) {
      const rows = run.rows.filter((row) => row.strategy !== null), one = rows.filter((row) => row.strategy === "I").length;
      tiles.append(tile("strategy", last.strategy, `I in ${one} of ${rows.length} rounds`));
    }
  }
  if (run.left !== null && run.state === "running") tiles.append(tile("time left", duration(run.left), "at the recent pace"));
  const spent = run.rows.reduce((sum, row) => sum + (row.seconds || 0), 0);
  if (spent) tiles.append(tile("time so far", duration(spent)));
  const facts = Object.entries(runs.size > 1 ? run.apart : run.facts).map(([key, value]) => `${key} = ${value}`).join(" · ");
  const made = make("article", { class: "run", id: `run-${run.id}` },
    make("h2", {}, run.name, make("span", { class: `state ${run.state}` }, run.state),
      make("span", { class: "soft" }, `round ${run.rows.length} of ${run.total}`)),
    make("p", { class: "facts" }, facts || run.experiment),
    make("progress", { max: Math.max(1, run.total), value: run.rows.length, "aria-label": "rounds done" }),
    make("p", { class: "now" }, nowLine(run)), tiles,
    ...run.warnings.map((text) => make("p", { class: "warning" }, `Warning: ${text}`)));
  made.style.setProperty("--own", colour(run));
  const strip = strategies(run);
  if (strip) made.append(strip, make("p", { class: "key" }, "strategy by round: full colour I, the quantized model; pale II"));
  return made;
}
function strategies(run) {
  const rows = run.rows;
  if (!rows.some((row) => row.strategy !== null)) return null;
  const made = make("svg", { class: "strip", viewBox: `0 0 ${Math.max(run.total, rows.length)} 1`, preserveAspectRatio: "none",
    role: "img", "aria-label": "strategy by round: full colour is I, the quantized model" });
  for (let start = 0, at = 1; at <= rows.length; at++) {
    if (at < rows.length && rows[at].strategy === rows[start].strategy) continue;
    const kind = rows[start].strategy === "I" ? "one" : "two";
    made.append(make("rect", { x: start, y: 0, width: at - start, height: 1, class: kind }));
    start = at;
  }
  return made;
}

// ---------------------------------------------------------------- curves
const CHARTS = [
  { id: "score", title: () => { const run = [...runs.values()][0]; return `test ${run ? run.measure.name : "score"}`; },
    lines: [(row) => row.score], text: (value, run) => scoreText(run, value) },
  { id: "loss", title: () => "loss: test, and of training (dashed)", lines: [(row) => row.loss, (row) => row.train_loss], text: number },
  { id: "up", title: () => "uploaded so far", lines: [(row, sums) => sums.up], text: size, zero: true },
  { id: "down", title: () => "downloaded so far", lines: [(row, sums) => sums.down], text: size, zero: true },
  { id: "flips", title: () => "trits that flipped", lines: [(row) => row.changed], text: share, zero: true },
  { id: "seconds", title: () => "seconds per round", lines: [(row) => row.seconds || null], text: duration, zero: true },
];
function seriesOf(chart) {
  const found = [];
  for (const run of runs.values()) {
    chart.lines.forEach((value, at) => {
      const sums = { up: 0, down: 0 };
      const points = run.rows.map((row) => {
        sums.up += row.bytes_up; sums.down += row.bytes_down;
        return [row.round, value(row, sums)];
      }).filter((point) => point[1] !== null && point[1] !== undefined);
      if (points.length) found.push({ run, points, thin: at > 0 });
    });
  }
  return found;
}
function ticks(low, high, count) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}
function placeChart(chart, series) {
  let figure = byId(`chart-${chart.id}`);
  if (!series.length && figure) figure.remove();
  if (series.length && !figure) {
    figure = make("figure", { id: `chart-${chart.id}` }, make("figcaption"), make("svg", { role: "img" }));
    const after = CHARTS.slice(CHARTS.indexOf(chart) + 1).map((next) => byId(`chart-${next.id}`)).find((next) => next);
    byId("charts").insertBefore(figure, after || null);
    const svg = figure.querySelector("svg");
    svg.addEventListener("pointermove", (event) => { figure.pointer = event.clientX; point(chart, figure); });
    svg.addEventListener("pointerleave", () => { figure.pointer = undefined; point(chart, figure); });
  }
}
function drawChart(chart, series) {
  const figure = byId(`chart-${chart.id}`);
  if (!figure) return;
  figure.querySelector("figcaption").textContent = chart.title();
  const svg = figure.querySelector("svg"), width = svg.clientWidth || 380, height = svg.clientHeight || 210;
  svg.setAttribute("aria-label", chart.title());
  const ys = series.flatMap((each) => each.points.map((at) => at[1]));
  const longest = Math.max(2, ...series.map((each) => each.points[each.points.length - 1][0]));
  let low = Math.min(...ys), high = Math.max(...ys);
  if (chart.zero) low = Math.min(0, low);
  if (high === low) { high += Math.abs(high) * 0.1 || 1; low -= chart.zero ? 0 : Math.abs(low) * 0.1; }
  const first = series[0].run, label = (value) => chart.text(value, first);
  const marks = ticks(low, high, 4), left = 12 + 6.6 * Math.max(5, ...marks.map((mark) => label(mark).length)), bottom = 22, top = 8, right = 10;
  const x = (round) => left + ((round - 1) / (longest - 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low)) * (height - bottom - top);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const parts = [];
  for (const mark of marks) {
    parts.push(make("line", { class: "grid", x1: left, x2: width - right, y1: y(mark), y2: y(mark) }));
    parts.push(make("text", { x: left - 6, y: y(mark) + 4, "text-anchor": "end" }, label(mark)));
  }
  for (const mark of ticks(1, longest, Math.min(6, Math.max(2, width / 90))).filter((at) => Number.isInteger(at) && at >= 1))
    parts.push(make("text", { x: x(mark), y: height - 5, "text-anchor": "middle" }, String(mark)));
  parts.push(make("text", { x: left - 6, y: height - 5, "text-anchor": "end" }, "round"));
  for (const { run, points, thin } of series) {
    const d = points.map(([round, value], at) => `${at ? "L" : "M"}${x(round).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const line = make("path", { class: thin ? "curve thin" : "curve", d: points.length > 1 ? d : `${d}h.1` });
    line.style.stroke = colour(run);
    if (points.length === 1) line.style.strokeLinecap = "round";
    parts.push(line);
  }
  svg.replaceChildren(...parts);
  figure.scale = { x, left, right, width, longest, series };
  point(chart, figure);
}
function point(chart, figure) {
  figure.querySelectorAll(".cross, .tip").forEach((old) => old.remove());
  if (figure.pointer === undefined || !figure.scale) return;
  const { x, left, right, width, longest, series } = figure.scale, svg = figure.querySelector("svg"), box = svg.getBoundingClientRect();
  const inside = (figure.pointer - box.left - left) / (width - left - right);
  const round = Math.min(longest, Math.max(1, Math.round(1 + inside * (longest - 1))));
  svg.append(make("line", { class: "cross", x1: x(round), x2: x(round), y1: 4, y2: svg.clientHeight - 20 }));
  const tip = make("div", { class: "tip" }, make("div", {}, `round ${round}`));
  for (const { run, points, thin } of series) {
    const found = points.find((at) => at[0] === round);
    if (!found) continue;
    const line = make("div", {}, `${runs.size > 1 ? `${run.name}: ` : ""}${thin ? "training " : ""}${chart.text(found[1], run)}`);
    line.style.color = colour(run);
    tip.append(line);
  }
  figure.append(tip);
  tip.style.left = `${Math.min(Math.max(0, x(round) + 10), Math.max(0, figure.clientWidth - tip.offsetWidth))}px`;
}

// ---------------------------------------------------------------- phases, clients, what did not count
function phaseClass(name) { const at = PHASES.indexOf(name); return `ph${at < 0 ? 5 : at}`; }
function drawPhases() {
  const timed = [...runs.values()].filter((run) => Object.keys(run.phases).length), place = byId("phases");
  place.hidden = !timed.length;
  const names = [...new Set(timed.flatMap((run) => Object.keys(run.phases)))];
  const keys = make("div", { class: "keys" }, ...names.map((name) => make("span", {}, make("i", { class: phaseClass(name) }), name)));
  const bars = timed.map((run) => {
    const total = Object.values(run.phases).reduce((sum, each) => sum + each, 0);
    const parts = make("span", { class: "parts" });
    for (const [name, seconds] of Object.entries(run.phases)) {
      const part = make("span", { class: phaseClass(name), title: `${name} ${duration(seconds)}` });
      part.style.width = `${(100 * seconds) / (total || 1)}%`;
      parts.append(part);
    }
    return make("div", { class: "bar" }, make("span", { title: run.name }, run.name), parts, make("span", { class: "sum" }, duration(total)));
  });
  place.querySelector("div").replaceChildren(keys, ...bars);
}
function drawClients() {
  const shown = [...runs.values()].filter((run) => (run.live && Object.keys(run.live.clients).length) || Object.keys(run.clients).length);
  byId("clients").hidden = !shown.length;
  byId("clients").querySelector("div").replaceChildren(...shown.flatMap((run) => {
    const states = run.live ? run.live.clients : {}, network = Object.keys(run.clients).length > 0;
    const name = runs.size > 1 ? [make("h2", {}, run.name)] : [];
    if (!network) {
      const chips = Object.entries(states).map(([index, state]) => make("span", { class: state }, `${index} ${state}`));
      return [...name, make("div", { class: "chips" }, ...chips)];
    }
    const everyone = [...new Set([...Object.keys(states), ...Object.keys(run.clients)])].sort((a, b) => a - b);
    const head = ["client", "state", "rounds", "uploaded", "downloaded", "on the wire, both ways", "last took"];
    const rows = everyone.map((index) => {
      const own = run.clients[index] || { rounds: 0, up: 0, down: 0, socket_up: 0, socket_down: 0, seconds: null }, state = states[index] || "–";
      const cells = [own.rounds, size(own.up), size(own.down), size(own.socket_up + own.socket_down), own.seconds === null ? "–" : duration(own.seconds)];
      return make("tr", {}, make("td", {}, index), make("td", { class: state }, state), ...cells.map((cell) => make("td", {}, String(cell))));
    });
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...head.map((text) => make("th", {}, text)))), make("tbody", {}, ...rows));
    return [...name, make("div", { class: "wide" }, table)];
  }));
}
function drawDropped() {
  const found = [...runs.values()].flatMap((run) => run.rows.flatMap((row) => row.dropped.map((reason) => [run, row.round, reason])));
  byId("dropped").hidden = !found.length;
  const lines = found.slice(-20).reverse().map(([run, round, reason]) => `${runs.size > 1 ? `${run.name}, ` : ""}round ${round}: ${reason}`);
  if (found.length > 20) lines.push(`and ${found.length - 20} before`);
  byId("dropped").querySelector("ul").replaceChildren(...lines.map((line) => make("li", {}, line)));
}

// ---------------------------------------------------------------- drawn once per frame, however much comes
let waiting = false;
function draw() {
  waiting = false;
  byId("none").hidden = runs.size > 0;
  byId("runs").replaceChildren(...[...runs.values()].map(card));
  const charts = CHARTS.map((chart) => [chart, seriesOf(chart)]);
  charts.forEach(([chart, series]) => placeChart(chart, series));  // all of them first: each is as wide as the others let it be
  charts.forEach(([chart, series]) => drawChart(chart, series));
  drawPhases(); drawClients(); drawDropped();
  const busy = [...runs.values()].filter((run) => run.state === "running").length;
  document.title = runs.size === 1 ? `${[...runs.values()][0].name}: ternfed watch` : `${busy} of ${runs.size} running: ternfed watch`;
}
function soon() { if (!waiting) { waiting = true; requestAnimationFrame(draw); } }
function linked(on, text) { const line = byId("link"); line.className = on ? "on" : "off"; line.textContent = text; }

// A server tells everything anew to whoever comes (again), and says when it ends; what was shown last stays.
const source = new EventSource("events");
let anew = true, ended = false;
source.onopen = () => { anew = true; ended = false; linked(true, "live"); soon(); };
source.onmessage = (event) => {
  if (anew) runs.clear();
  anew = false;
  take(JSON.parse(event.data));
  linked(true, "live");
  soon();
};
source.addEventListener("end", () => { ended = true; });
source.onerror = () => {
  const again = runs.size ? "; ternfed watch shows it again" : "";
  linked(false, ended ? `this page ended with its command${again}` : "no connection to ternfed watch; trying again");
};
addEventListener("resize", soon);
setInterval(() => {
  for (const run of runs.values()) {
    const line = document.querySelector(`#run-${run.id} .now`);
    if (line && run.live) line.textContent = nowLine(run);
  }
}, 1000);
