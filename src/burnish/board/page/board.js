"use strict";
// The board: a list of runs, their curves, and below each step its groups and responses. The server only reads files;
// a report has none (snapshot.js).

const $ = (id) => document.getElementById(id);
const runs = new Map();  // name -> summary, with `head` and, if it is drawn, `colour`
const state = { control: false, roots: [], now: 0, chosen: [], charts: [], flat: [], drawn: new Map(), loaded: new Map(), search: "", find: "", order: "last step", detail: null };
const place = { kind: "step", step: null, group: null, run: null, beside: "" };  // of the drill-down
const wanted = { low: "", high: "", status: "", why: "", domain: "", text: "" };
let key = sessionStorage.getItem("burnish-key") || "";

class RefusedByServer extends Error {}

// ---- the server

async function call(path, parameters = {}, body = null) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) for (const one of [value].flat()) if (one !== null && one !== undefined && one !== "") query.append(name, one);
  const headers = { ...(key ? { Authorization: `Bearer ${key}` } : {}), ...(body ? { "Content-Type": "application/json" } : {}) };
  const response = await fetch(`/api/${path}?${query}`, { headers, ...(body ? { method: "POST", body: JSON.stringify(body) } : {}) });
  if (response.status === 401) $("key").hidden = false;
  if (!response.ok) throw new RefusedByServer((await response.json().catch(() => ({}))).error || `the server answers ${response.status}`);
  return response;
}

const ask = window.snapshot ?? (async (path, parameters) => (await call(path, parameters)).json());
const tell = async (path, body) => (await call(path, {}, body)).json();

function failed(error) {
  $("live").textContent = error.message;
  $("live").className = "lost";
}

async function follow() {
  // Server-sent events, read by hand: a key travels in a header, which EventSource cannot send.
  for (let wait = 1; ; wait = Math.min(10, wait * 2)) {
    try {
      const reader = (await call("events")).body.pipeThrough(new TextDecoderStream()).getReader();
      $("live").textContent = ""; $("live").className = ""; wait = 1;
      for (let text = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        const events = (text + value).split("\n\n");
        text = events.pop();
        for (const event of events) if (event.startsWith("data: ")) update(JSON.parse(event.slice(6)));
      }
    } catch (error) { if (error instanceof RefusedByServer && !$("key").hidden) return; }
    failed(new Error("the board's server does not answer; trying again"));
    await new Promise((resolve) => setTimeout(resolve, 1000 * wait));
  }
}

function update({ runs: changed, gone, now }) {
  state.now = now;
  let fresh = gone.length > 0;
  for (const name of gone) runs.delete(name);
  if (gone.length) state.chosen = state.chosen.filter((name) => runs.has(name));
  const moved = [];
  let alarmed = false;
  for (const summary of changed) {
    const before = runs.get(summary.name);
    if (!before?.head) fresh = true;
    if (before && before.alarms !== summary.alarms && state.chosen.includes(summary.name)) alarmed = true;
    if (before && before.rows !== summary.rows && state.chosen.includes(summary.name)) moved.push(summary.name);
    runs.set(summary.name, { ...before, ...summary });
  }
  if (fresh) { start(); return; }
  drawRuns();
  drawHead();
  if (moved.length) refreshCurves(moved);
  if (moved.includes(state.chosen[0]) && !$("overview").hidden) drawTimeline(state.chosen[0]);
  if (alarmed && !$("overview").hidden) drawDetails().catch(failed);
}

async function start() {
  try {
    const { runs: found, heads, ...rest } = await ask("runs");
    $("key").hidden = true;
    Object.assign(state, rest);
    for (const summary of found) runs.set(summary.name, { ...runs.get(summary.name), ...summary, head: heads[summary.name] });
    route();
  } catch (error) { failed(error); }
}

// ---- addresses: #run=a&run=b, and below them &kind=step&step=12&group=3

function address(parts) {
  const query = new URLSearchParams();
  for (const name of parts.runs ?? state.chosen) query.append("run", name);
  for (const name of ["kind", "step", "group", "beside"]) if (parts[name] !== undefined && parts[name] !== null && parts[name] !== "") query.set(name, parts[name]);
  return `#${query}`;
}

const go = (parts) => { location.hash = address(parts); };

function route() {
  const query = new URLSearchParams(location.hash.slice(1));
  const named = query.getAll("run").filter((name) => runs.has(name));
  const newest = [...runs.values()].sort((a, b) => b.changed - a.changed)[0];
  const chosen = named.length ? named : window.snapshot ? [...runs.keys()] : newest ? [newest.name] : [];
  const changed = chosen.join("\n") !== state.chosen.join("\n") || !state.charts.length;
  if (changed) state.chosen = chosen;  // the same array as long as the choice is the same
  chosen.forEach((name, i) => { runs.get(name).colour = i; });
  const step = query.get("step");
  $("overview").hidden = step !== null;
  $("runs").hidden = step !== null;
  $("drill").hidden = step === null;
  drawRuns();
  drawHead();
  if (changed) loadRuns(step === null);
  if (step !== null) openStep(query);
  else if (!changed) showVisible();
}

// ---- the list of runs, and the head

function ago(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86_400)} d`;
}

const moment = (seconds) => new Date(1000 * seconds).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

const SCORES = [["eval/accuracy", "accuracy", 1], ["eval/reward_mean", "held out", 1], ["reward/mean", "reward", 1], ["eval/loss", "held-out loss", -1], ["train/loss", "loss", -1]];

function scoreOf(run) {  // the place of its kind in the list, its text, and a number that is higher for better runs
  const kind = SCORES.findIndex(([name]) => name in run.values);
  if (kind < 0) return { kind: SCORES.length, text: "", rank: 0 };
  const [name, label, sign] = SCORES[kind], value = run.values[name][1];
  return { kind, text: `${label} ${number(value)}`, rank: sign * value };
}

const byName = (a, b) => a.name.localeCompare(b.name, "en", { numeric: true });
const ORDERS = {  // by heading
  run: byName,
  "last step": (a, b) => b.changed - a.changed || byName(a, b),
  score: (a, b) => scoreOf(a).kind - scoreOf(b).kind || scoreOf(b).rank - scoreOf(a).rank || byName(a, b),
};

function runRow(run) {
  const chosen = state.chosen.includes(run.name), colour = make("i", { class: "colour" });
  if (chosen && state.chosen.length > 1) colour.style.background = `var(--s${run.colour % 8})`;
  const toggle = (event) => { event.stopPropagation(); go({ runs: chosen ? state.chosen.filter((name) => name !== run.name) : [...state.chosen, run.name] }); };
  const progress = make("progress", { max: 1, "aria-hidden": "true" });
  progress.value = run.total ? Math.min(1, run.step / run.total) : 0;
  return make("tr", { class: chosen ? "chosen" : null, onclick: () => go({ runs: [run.name] }) },
    make("td", {}, make("input", { type: "checkbox", checked: chosen, "aria-label": `Overlay ${run.name}`, onclick: toggle })),
    make("th", { scope: "row" }, colour, make("button", { type: "button", title: run.head?.folder }, run.name)),
    make("td", {}, make("span", { class: `state ${run.state}` }, run.read < 0.99 ? `reading ${Math.round(100 * run.read)} %` : run.state)),
    make("td", {}, run.total ? progress : null, run.total ? `${run.step.toLocaleString("en")} / ${run.total.toLocaleString("en")}` : run.step.toLocaleString("en")),
    make("td", { class: "number" }, !run.changed ? "" : window.snapshot ? moment(run.changed) : `${ago(state.now - run.changed)} ago`),
    make("td", { class: "number" }, run.left === null ? "" : ago(run.left)),
    make("td", {}, scoreOf(run).text),
    make("td", {}, run.problem ? chip(run.problem, "bad") : run.alarms ? chip(`${run.alarms} ${run.alarms === 1 ? "alarm" : "alarms"}`, "warn") : ""),
    make("td", { class: "wide" }, run.head?.algorithm || run.head?.kind || ""));
}

function drawRuns() {
  const section = $("runs");
  if (section.hidden || !runs.size) {
    if (!section.hidden) section.replaceChildren(make("p", { class: "quiet", style: "padding: 14px; margin: 0" }, "No run in these folders yet. They are looked at every few seconds."));
    return;
  }
  const found = () => [...runs.values()].filter((run) => run.name.toLowerCase().includes(state.find)).sort(ORDERS[state.order]);
  const listed = found(), all = listed.length > 0 && listed.every((run) => state.chosen.includes(run.name));
  if (!section.querySelector("tbody")) {
    const find = make("div", { class: "find" }, make("input", { type: "search", placeholder: "find a run", "aria-label": "Find a run", oninput: (event) => { state.find = event.target.value.toLowerCase(); drawRuns(); } }));
    const every = make("input", { type: "checkbox", "aria-label": "Overlay all runs found", onclick: () => go({ runs: every.checked ? found().map((run) => run.name) : [] }) });
    const sorting = (text) => (text in ORDERS ? make("button", { type: "button", title: `order by ${text}`, onclick: () => { state.order = text; drawRuns(); } }, text) : text);
    const head = [every, "run", "state", "step", "last step", "left", "score", "", "kind"].map((text, i) => make(text ? "th" : "td", { class: i === 8 ? "wide" : i === 4 || i === 5 ? "number" : null }, sorting(text)));
    section.replaceChildren(find, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {})));
  }
  section.querySelector(".find").hidden = runs.size < 9;
  section.querySelector("thead input").checked = all;
  for (const cell of section.querySelectorAll("th")) if (cell.textContent in ORDERS) cell.ariaSort = cell.textContent === state.order ? (state.order === "run" ? "ascending" : "descending") : null;
  const focus = document.activeElement?.getAttribute("aria-label");
  section.querySelector("tbody").replaceChildren(...listed.map(runRow));
  if (focus?.startsWith("Overlay ")) [...section.querySelectorAll("input")].find((node) => node.getAttribute("aria-label") === focus)?.focus();
}

const MOST_NAMES = 12;

function drawHead() {
  const chosen = state.chosen.map((name) => runs.get(name)), one = chosen.length === 1 ? chosen[0] : null;
  $("where").textContent = state.roots.join(", ");
  $("title").textContent = one ? one.name : chosen.length ? `${chosen.length} runs` : "Runs";
  document.title = `${$("title").textContent} · burnish`;
  const fact = (name, value) => (value ? make("span", {}, `${name} `, make("b", {}, value)) : null);
  const facts = one ? [fact("folder", one.head?.folder), fact(one.head?.kind, one.head?.algorithm || " "), fact("model", one.head?.model), fact("data", one.head?.data),
    fact("step", `${one.step.toLocaleString("en")}${one.total ? ` of ${one.total.toLocaleString("en")}` : ""}`), fact("began", one.head?.began.replace("T", " ").slice(0, 16)),
    fact("forked from", one.head?.forked_from && `${one.head.forked_from} at step ${one.head.forked_at}`)]
    : [...chosen.slice(0, MOST_NAMES).map((run) => make("span", {}, run.name)), fact("and", chosen.length > MOST_NAMES && `${chosen.length - MOST_NAMES} more`)];
  $("facts").replaceChildren(...facts.filter(Boolean));
  $("tiles").replaceChildren(...(one ? tilesOf(one) : []));
  drawControl(one);
}

const share = (value) => `${(100 * value).toFixed(1)} %`;
const TILES = [["reward", "reward/mean"], ["held-out reward", "eval/reward_mean"], ["held-out accuracy", "eval/accuracy", share], ["loss", "train/loss"], ["held-out loss", "eval/loss"],
  ["KL to the reference", "kl/reference"], ["turns", "conversation/turns_mean"], ["response tokens", "rollout/response_tokens_mean"]];

function tilesOf({ values, spent }) {
  // What a run has come to: the latest values, and below each the first one.
  const tile = (label, value, before) => make("div", { class: "tile" }, make("span", { class: "label" }, label), make("span", { class: "value" }, value), make("span", { class: "before" }, before));
  const known = TILES.filter(([, metric]) => metric in values).map(([label, metric, form = number]) => {
    const [first, latest] = values[metric];
    return tile(label, form(latest), first === latest ? "" : `from ${form(first)}`);
  });
  return spent ? [...known, tile("time in steps", duration(spent), "")] : known;
}

function drawControl(run) {
  const at = $("control");
  if (!state.control || !run || !["running", "paused", "silent"].includes(run.state)) { at.replaceChildren(); return; }
  const button = (text, request, on = true) => make("button", { type: "button", disabled: on && run.asked.includes(request),
    onclick: () => tell("request", { run: run.name, request, on }).then(() => { $("live").textContent = `${text}: asked for`; }, failed) }, text);
  const paused = run.asked.includes("pause");
  at.replaceChildren(button(paused ? "Resume" : "Pause", "pause", !paused), " ", button("Save now", "save"), " ", button("Stop after this step", "stop"));
}

// ---- curves of the chosen runs

const chosenRuns = () => state.chosen.map((name) => ({ name, colour: runs.get(name).colour, ...runs.get(name).head }));

async function loadRuns(show) {
  const names = state.chosen;
  if (!names.length) { for (const id of ["tiles", "alarms", "tools", "curves", "flat", "remarks", "rest", "pictures", "timeline", "notes", "configuration"]) $(id).replaceChildren(); return; }
  try {
    const charts = await ask("charts", { run: names });
    if (names !== state.chosen) return;
    setCharts(charts);
    if (show) await drawDetails();
  } catch (error) { failed(error); }
}

function setCharts({ charts, flat }) {
  const same = JSON.stringify(charts) === JSON.stringify(state.charts) && state.drawnFor === state.chosen;
  state.charts = charts; state.flat = flat;
  if (!same) { state.drawn.clear(); state.loaded.clear(); state.drawnFor = state.chosen; drawing.zoom = null; drawTools(); drawMain(); drawRest(); }
  $("flat").replaceChildren(...(flat.length ? [make("b", {}, "Flat: "), flat.map(({ metric, value }) => `${metric} ${number(value)}`).join(" · ")] : []));
}

function drawTools() {
  const redraw = () => { for (const chart of state.drawn.values()) if (chart.drawnFor) chart.show(chosenRuns(), merged(chart)); };
  const axis = (value) => { drawing.axis = value; drawing.zoom = null; state.loaded.clear(); drawTools(); showVisible(); };
  const amount = make("span", {}, String(drawing.smoothing));
  const families = new Set(chosenRuns().map((run) => run.family));
  const check = (text, name, title) => make("label", { title }, make("input", { type: "checkbox", checked: drawing[name], onchange: (event) => { drawing[name] = event.target.checked; redraw(); } }), text);
  $("tools").replaceChildren(make("label", {}, "x", segmented([["step", "step"], ["tokens", "tokens"], ["time", "time"]], drawing.axis, axis)),
    make("label", {}, "smoothing", make("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: drawing.smoothing, "aria-label": "Smoothing",
      oninput: (event) => { drawing.smoothing = Number(event.target.value); amount.textContent = event.target.value; redraw(); } }), amount),
    check("logarithmic", "log", "charts with only positive values"),
    ...(state.chosen.length > 1 && families.size < state.chosen.length ? [check("bands by seed", "bands", "mean and range of runs that differ in their seed only")] : []),
    make("button", { type: "button", onclick: () => openNearest(state.chosen[0], runs.get(state.chosen[0]).step) }, "responses"),
    make("span", {}, "drag to zoom, double-click to see all, click to see the step"));
}

function chartOf(spec) {
  const name = `${spec.section}: ${spec.title}`;
  if (!state.drawn.has(name)) {
    const chart = new CurveChart(spec, (run, step) => openNearest(run, step), () => { state.loaded.clear(); showVisible(); });
    state.drawn.set(name, chart);
  }
  return state.drawn.get(name);
}

const mainCharts = () => state.charts.filter((chart) => chart.main).slice(0, 6);
const otherCharts = () => state.charts.filter((chart) => !mainCharts().includes(chart));

function drawMain() {
  $("curves").replaceChildren(...mainCharts().map((spec) => chartOf(spec).card));
  showVisible();
}

function drawRest() {
  const others = otherCharts(), grid = make("div", { class: "grid" }), count = make("span", { class: "quiet", style: "margin: 0" });
  const show = () => {
    const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (chart) => words.every((word) => `${chart.title} ${chart.section} ${chart.lines.map((line) => line.metric).join(" ")}`.toLowerCase().includes(word));
    const found = words.length ? others.filter(fits) : [];
    count.textContent = words.length ? `${found.length} of ${others.length}` : `${others.length} more charts`;
    grid.replaceChildren(...found.slice(0, 24).map((spec) => chartOf(spec).card));
    showVisible();
  };
  const input = make("input", { type: "search", value: state.search, placeholder: "find a metric, e.g. clip, grad, domain", "aria-label": "Find a metric", oninput: (event) => { state.search = event.target.value; show(); } });
  $("rest").replaceChildren(make("div", { class: "find" }, input, make("button", { type: "button", onclick: () => { state.search = "/"; input.value = "/"; show(); } }, "all"), count), grid);
  show();
}

const merged = (chart) => Object.fromEntries(state.chosen.map((name) => [name, Object.fromEntries(chart.spec.lines.map((line) => [line.metric, state.loaded.get(`${name}\n${line.metric}`)]).filter(([, part]) => part))]));

async function showVisible() {
  // Load what charts on the page lack, in one request, then draw these.
  const charts = [...state.drawn.values()].filter((chart) => chart.card.isConnected);
  const metrics = [...new Set(charts.flatMap((chart) => chart.spec.lines.map((line) => line.metric)))];
  const lacking = metrics.filter((metric) => state.chosen.some((name) => !state.loaded.has(`${name}\n${metric}`)));
  const names = state.chosen;
  if (lacking.length) {
    try {
      const unit = drawing.axis === "time" ? 3600 : 1;
      const bounds = drawing.zoom ? { from: drawing.zoom[0] * unit, to: drawing.zoom[1] * unit } : {};
      const found = await ask("points", { run: names, metric: lacking, axis: drawing.axis, ...bounds });
      if (names !== state.chosen) return;
      for (const [name, columns] of Object.entries(found)) for (const [metric, part] of Object.entries(columns)) state.loaded.set(`${name}\n${metric}`, part);
    } catch (error) { failed(error); return; }
  }
  const fresh = new Set(lacking);
  for (const chart of charts) if (chart.drawnFor !== names || chart.spec.lines.some((line) => fresh.has(line.metric))) { chart.show(chosenRuns(), merged(chart)); chart.drawnFor = names; }
}

let updates = 0, updating = false;
async function refreshCurves(moved) {
  // New points only: everything after the last step of each line that is drawn.
  if (updating || $("overview").hidden || drawing.zoom) return;
  updating = true;
  try {
    if (updates++ % 10 === 0 || moved.some((name) => runs.get(name).rows < 50)) setCharts(await ask("charts", { run: state.chosen }));
    for (const name of moved) {
      const run = runs.get(name), known = [...state.loaded.keys()].filter((entry) => entry.startsWith(`${name}\n`)).map((entry) => entry.slice(name.length + 1));
      if (!known.length) continue;
      const anew = run.drawnGeneration !== run.generation || (run.added ?? 0) > 500;
      const last = anew ? -1 : Math.max(-1, ...known.map((metric) => state.loaded.get(`${name}\n${metric}`).steps.at(-1) ?? -1));
      const found = (await ask("points", { run: name, metric: known, axis: drawing.axis, after: last }))[name];
      run.drawnGeneration = run.generation;
      run.added = anew ? 0 : (run.added ?? 0) + 1;
      for (const [metric, part] of Object.entries(found)) {
        const before = anew ? { steps: [], x: [], y: [], total: 0, count: 0 } : state.loaded.get(`${name}\n${metric}`);
        state.loaded.set(`${name}\n${metric}`, { steps: [...before.steps, ...part.steps], x: [...before.x, ...part.x], y: [...before.y, ...part.y], total: before.total + part.total, count: before.count + part.count });
      }
    }
    for (const chart of state.drawn.values()) if (chart.card.isConnected) chart.show(chosenRuns(), merged(chart));
  } catch (error) { failed(error); } finally { updating = false; }
}

// ---- alarms, notes, configuration

async function drawDetails() {
  const names = state.chosen;
  const [details, configurations] = await Promise.all([Promise.all(names.map((run) => ask("run", { run }))), ask("configurations", { run: names })]);
  if (names !== state.chosen) return;
  const several = names.length > 1;
  const alarms = details.flatMap((detail, i) => detail.alarms.map((alarm) => make("article", { class: "alarm" },
    make("h3", {}, alarm.name, make("span", {}, `${several ? `${names[i]}, ` : ""}from step ${alarm.step}`)), make("p", {}, alarm.message), make("p", { class: "knob" }, alarm.knob))));
  $("alarms").replaceChildren(...(alarms.length ? alarms : [make("p", { class: "quiet" }, `No alarm in ${several ? "these runs" : "this run"}.`)]));
  const notes = details.flatMap((detail, i) => detail.notes.map((note) => ({ ...note, run: names[i] })));
  $("notes").replaceChildren(...(notes.length ? [make("h2", {}, "Notes"), make("div", { class: "notes" }, ...notes.map((note) => make("p", {}, make("small", {}, note.written.slice(0, 16).replace("T", " ")),
    make("button", { class: "linklike", type: "button", onclick: () => go({ runs: [note.run], kind: note.kind, step: note.step, group: note.group }) }, `${several ? `${note.run}, ` : ""}step ${note.step}`), ` ${note.text}`)))] : []));
  $("remarks").replaceChildren(...new Set(details.flatMap((detail) => detail.remarks ?? [])));
  drawConfiguration(names, configurations, details);
  drawPictures(names);
  await drawTimeline(names[0]);
}

function drawPictures(names) {
  // Charts of responses. To make them, the server reads some whole files, so they are asked for.
  if (state.pictured === names) return;
  state.pictured = names;
  const show = async () => {
    try {
      const found = await Promise.all(names.map((run) => ask("pictures", { run })));
      const cards = found.flatMap((charts, i) => charts.map((chart) => pictureOf(names[i], chart)));
      $("pictures").replaceChildren(...(cards.length ? [make("h2", {}, "Responses"), make("div", { class: "grid" }, ...cards.map((chart) => chart.card))] : window.snapshot ? [] : [make("p", { class: "quiet" }, "There are no charts of responses.")]));
      for (const chart of cards) chart.draw();
    } catch (error) { failed(error); }
  };
  if (window.snapshot) show();
  else $("pictures").replaceChildren(make("button", { type: "button", onclick: show }, "charts of responses"));
}

function pictureOf(run, { title, help, axis, series }) {
  const spec = { title: state.chosen.length > 1 ? `${run}: ${title}` : title, help, axis, section: "", main: false, stack: false, lines: [] };
  const chart = new CurveChart(spec, (_, step) => { if (axis === "step") openNearest(run, step); });
  chart.lines = series.map(({ label, mark, x, y }, colour) => ({ label, metric: label, run, right: false, colour, dots: mark === "dots", dash: mark === "dashes" ? DASHES[1] : [], x, y }));
  return chart;
}

function drawConfiguration(names, { rows, texts }, details) {
  const several = names.length > 1, only = make("input", { type: "checkbox", checked: several }), body = make("tbody", {});
  const fill = () => body.replaceChildren(...rows.filter((row) => !only.checked || row.differs).map((row) => make("tr", { class: several && row.differs ? "differs" : null },
    make("th", {}, row.path), ...row.values.map((value) => make("td", {}, value)), make("td", { class: "default" }, row.default))));
  only.onchange = fill;
  fill();
  const table = make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, "field"), ...names.map((name) => make("th", {}, several ? name : "value")), make("th", {}, "default"))), body);
  const caption = several ? make("label", { class: "quiet" }, only, " only where these runs differ") : make("p", { class: "quiet" }, "Values that differ from the defaults and the preset");
  const files = names.flatMap((name, i) => [[several ? `Run file of ${name}` : "Resolved run file", texts[name]], [several ? `Versions and starts of ${name}` : "Versions and starts", details[i].environment]]);
  $("configuration").replaceChildren(make("h2", {}, "Configuration"), caption, rows.length ? table : make("p", { class: "quiet" }, "There is no configuration to show."),
    ...files.filter(([, text]) => text).map(([title, text]) => make("details", {}, make("summary", {}, title), make("pre", {}, text))));
}

// ---- from a step to its groups and responses

async function detailOf(run) {
  // Recorded steps. Asked anew when the run has moved on.
  const rows = runs.get(run).rows;
  if (state.detail?.run !== run || state.detail.rows !== rows) state.detail = { run, rows, ...(await ask("run", { run })) };
  return state.detail;
}

async function openNearest(run, step) {
  try {
    const detail = await detailOf(run), kind = detail.steps.length ? "step" : "eval", steps = detail[`${kind}s`];
    if (!steps.length) { failed(new Error(`${run} recorded no rollouts (logging.rollouts)`)); return; }
    place.run = run;
    go({ runs: [run, ...state.chosen.filter((name) => name !== run)], kind, step: steps[closest(steps, step)] });
  } catch (error) { failed(error); }
}

async function openStep(query) {
  const run = state.chosen[0], kind = query.get("kind") === "eval" ? "eval" : "step", step = Number(query.get("step"));
  const before = { ...place };
  Object.assign(place, { run, kind, step, group: query.get("group") === null ? null : Number(query.get("group")), beside: query.get("beside") ?? "" });
  const kept = before.run === run && before.kind === kind && before.step === step && place.page;
  try {
    const [detail, page] = await Promise.all([detailOf(run), kept ? place.page : ask("groups", { run, kind, step, ...wanted })]);
    if (place.step !== step || place.run !== run) return;
    place.page = page;
    if (place.group === null) place.group = (page.groups.find((group) => group.prompt === place.prompt) ?? page.groups[0])?.group ?? null;
    if (!kept || !$("drill").firstChild) drawWhere(detail);
    drawGroups();
    await drawGroup();
  } catch (error) { $("drill").replaceChildren(make("p", { class: "error" }, error.message), make("button", { type: "button", onclick: () => go({}) }, "‹ curves")); }
}

const stepsOf = () => state.detail?.[`${place.kind}s`] ?? [];
function move(by) {
  const steps = stepsOf(), at = steps.indexOf(place.step), next = steps[Math.max(0, Math.min(steps.length - 1, (at < 0 ? closest(steps, place.step) : at) + by))];
  if (next !== undefined && next !== place.step) go({ kind: place.kind, step: next, beside: place.beside });
}

function drawWhere(detail) {
  const steps = detail[`${place.kind}s`], at = Math.max(0, steps.indexOf(place.step));
  const jump = (step) => go({ kind: place.kind, step, beside: place.beside });
  const slider = make("input", { type: "range", min: 0, max: Math.max(0, steps.length - 1), value: at, "aria-label": "Recorded steps", onchange: (event) => jump(steps[event.target.value]) });
  const exact = make("input", { type: "number", value: place.step, "aria-label": "Step", onchange: (event) => jump(steps[closest(steps, Number(event.target.value))]) });
  const kinds = segmented([["step", "training"], ["eval", "evaluation"]], place.kind, (kind) => { const own = detail[`${kind}s`]; if (own.length) go({ kind, step: own[closest(own, place.step)], beside: place.beside }); });
  const tints = [["advantage", "advantage"], ["logprob", "log-prob"], ["mismatch", "mismatch"], ["entropy", "entropy"], ["value", "value"], ["version", "weights"], ["none", "none"]];
  const tint = (value) => { view.tint = value; drawWhere(detail); drawGroups(); drawGroup(); };
  const others = [...runs.keys()].filter((name) => name !== place.run);
  const beside = make("select", { "aria-label": "Another run beside this one", onchange: (event) => go({ kind: place.kind, step: place.step, group: place.group, beside: event.target.value }) },
    make("option", { value: "" }, "–"), ...others.map((name) => make("option", { value: name, selected: name === place.beside }, name)));
  $("drill").replaceChildren(make("h2", { class: "unseen" }, "Responses"),
    make("div", { class: "where" }, make("button", { type: "button", onclick: () => go({}) }, "‹ curves"), kinds, make("button", { type: "button", "aria-label": "Earlier", onclick: () => move(-1) }, "‹"), exact,
      make("button", { type: "button", "aria-label": "Later", onclick: () => move(1) }, "›"), slider, make("span", { class: "quiet" }, make("kbd", {}, "←"), " ", make("kbd", {}, "→"), " steps  ", make("kbd", {}, "↑"), " ", make("kbd", {}, "↓"), " groups  ", make("kbd", {}, "esc"), " curves")),
    filterRow(),
    make("div", { class: "controls" }, make("label", {}, "tint", segmented(tints, view.tint, tint)), others.length ? make("label", {}, "beside", beside) : null,
      make("label", {}, "order", segmented([["sample", "sample"], ["reward", "reward"]], view.sort, (value) => { view.sort = value; drawWhere(detail); drawGroups(); drawGroup(); })),
      window.snapshot || place.kind === "eval" ? null : make("label", {}, "keep this step", make("button", { type: "button", onclick: () => keepRows("best") }, "SFT rows"), make("button", { type: "button", onclick: () => keepRows("pairs") }, "preference rows"))),
    make("div", { class: "panes" }, make("div", { class: "prompts", role: "group", "aria-label": "Prompts" }), make("div", { class: "sides" })));
}

function filterRow() {
  let waiting = 0;
  const change = (name) => (event) => { wanted[name] = event.target.value; clearTimeout(waiting); waiting = setTimeout(reload, 200); };
  const select = (name, values, label) => (values.length > 1 || wanted[name] ? make("label", {}, label, make("select", { onchange: change(name), "aria-label": label },
    make("option", { value: "" }, "all"), ...values.map((value) => make("option", { value, selected: value === wanted[name] }, value)))) : null);
  const bound = (name, label) => make("input", { type: "number", step: "any", value: wanted[name], "aria-label": label, oninput: change(name) });
  const { statuses, reasons, domains } = place.page;
  return make("div", { class: "controls filters" }, make("label", {}, "text", make("input", { type: "search", value: wanted.text, placeholder: "in prompt or response", oninput: change("text") })),
    make("label", {}, "reward from", bound("low", "Lowest reward"), "to", bound("high", "Highest reward")), select("status", statuses, "status"), select("why", reasons, "in the update"), select("domain", domains, "domain"));
}

async function reload() {
  try {
    place.page = await ask("groups", { run: place.run, kind: place.kind, step: place.step, ...wanted });
    if (!place.page.groups.some((group) => group.group === place.group)) place.group = place.page.groups[0]?.group ?? null;
    drawGroups();
    await drawGroup();
  } catch (error) { failed(error); }
}

async function keepRows(form) {
  try {
    const response = await call("export", { run: place.run, step: place.step, form, least: form === "best" ? wanted.low : "" });
    download(`${form}-step-${place.step}.jsonl`, await response.blob());
  } catch (error) { failed(error); }
}

const LISTED = 300;
function drawGroups() {
  const { groups, left_out: leftOut } = place.page, list = document.querySelector("#drill .prompts"), top = list.scrollTop;
  const rewards = groups.flatMap((group) => group.rewards).filter((reward) => reward !== null), low = Math.min(...rewards), high = Math.max(...rewards);
  const dots = (group) => group.rewards.slice(0, 16).map((reward) => { const dot = make("i", {}); dot.style.background = `color-mix(in srgb, var(--accent) ${reward === null ? 0 : high > low ? Math.round((100 * (reward - low)) / (high - low)) : 100}%, var(--card))`; return dot; });
  list.replaceChildren(...groups.slice(0, LISTED).map((group) => make("button", { type: "button", "aria-current": group.group === place.group ? "true" : null, onclick: () => choose(group) },
    make("span", { class: "text" }, group.asked.trim().slice(-160) || "(empty prompt)"),
    make("span", { class: "facts" }, make("span", { class: "dots" }, ...dots(group)), make("span", { class: "spread", title: "mean reward, and spread" }, `${number(group.mean)}  ±${number(group.spread)}`)))),
    make("p", { class: "more" }, groups.length ? [groups.length > LISTED ? `${groups.length - LISTED} more groups: use the filters` : "", leftOut ? `${leftOut} responses left out by the filters` : ""].filter(Boolean).join(" · ") : "No response of this step passes the filters."));
  list.scrollTop = top;
  list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
}

const choose = (group) => go({ kind: place.kind, step: place.step, group: group.group, beside: place.beside });

function moveGroup(by) {
  const groups = place.page?.groups ?? [], at = groups.findIndex((group) => group.group === place.group), next = groups[at + by];
  if (next) choose(next);
}

async function drawGroup() {
  const sides = document.querySelector("#drill .sides"), asked = { ...place };
  if (asked.group === null) { sides.replaceChildren(make("p", { class: "quiet" }, place.page.left_out ? "No response passes the filters." : "Nothing was sampled in this step.")); return; }
  const found = await ask("group", { run: asked.run, kind: asked.kind, step: asked.step, group: asked.group, ...wanted });
  if (asked.group !== place.group || asked.step !== place.step || asked.run !== place.run) return;
  place.prompt = found.group.id;
  for (const [text, field] of [["log-prob", "logprobs"], ["mismatch", "mismatch"], ["entropy", "entropy"], ["value", "values"]])  // what the record holds
    for (const button of document.querySelectorAll("#drill .segmented button")) if (button.textContent === text) button.disabled = !found.group.responses.some((response) => response[field]);
  sides.classList.toggle("two", Boolean(asked.beside));
  sides.replaceChildren(sideOf(asked.run, asked, found));
  if (asked.beside && runs.has(asked.beside)) sides.append(await besideOf(asked, found.group.id));
}

async function besideOf(asked, prompt) {
  // The same prompt in another run, at the step nearest to this one. Its files are indexed first, as far as needed.
  try {
    const { sightings } = await allSightings(asked.beside, asked.kind, prompt);
    if (!sightings.length) return make("p", { class: "quiet" }, `${asked.beside} has no recorded response to this prompt.`);
    const nearest = sightings[closest(sightings.map((one) => one.step), asked.step)];
    const there = { ...asked, run: asked.beside, step: nearest.step, group: nearest.group };
    return sideOf(asked.beside, there, await ask("group", { run: there.run, kind: there.kind, step: there.step, group: there.group }));
  } catch (error) { return make("p", { class: "error" }, error.message); }
}

async function allSightings(run, kind, prompt, progress = () => {}) {
  for (;;) {
    const found = await ask("prompt", { run, kind, prompt });
    progress(found);
    if (!found.missing) return found;
  }
}

function sideOf(run, at, found) {
  const { group, total } = found, responses = make("div", { class: "responses" }), over = make("div", {}), legend = make("p", { class: "meta" });
  const all = { values: [] };
  const add = (part) => {
    const worth = (response) => (typeof response.reward === "number" ? response.reward : -Infinity);
    const shown = view.sort === "reward" ? part.group.responses.toSorted((a, b) => worth(b) - worth(a)) : part.group.responses;
    all.values.push(...shown);
    const most = (field, some) => some.flatMap((response) => response[field] ?? []).filter((one) => typeof one === "number").slice(0, 50_000).reduce((high, one) => Math.max(high, Math.abs(one)), 0);
    const scale = { advantage: advantageScale({ responses: all.values }), value: valueRange({ groups: [{ responses: all.values }] }), mismatch: Math.max(1e-6, most("mismatch", shown)), entropy: most("entropy", all.values) };
    legend.replaceChildren(...[tintKey(scale)].filter(Boolean));
    responses.append(...shown.map((response) => lazily(() => responseCard(response, scale))));
  };
  add({ group });
  const more = make("button", { type: "button", hidden: total <= all.values.length, onclick: async () => {
    try {
      add(await ask("group", { run, kind: at.kind, step: at.step, group: at.group, first: all.values.length, ...wanted }));
      more.hidden = total <= all.values.length;
    } catch (error) { failed(error); }
  } }, `more of ${total} responses`);
  const card = promptCard(group), text = make("input", { placeholder: "a note, kept in the run's folder", "aria-label": "Note", maxlength: 4000 });
  const note = make("form", { onsubmit: async (event) => {
    event.preventDefault();
    try { await tell("note", { run, kind: at.kind, step: at.step, group: at.group, text: text.value }); text.value = ""; state.detail = null; $("live").textContent = "kept"; } catch (error) { failed(error); }
  } }, text, make("button", {}, "Keep"));
  card.append(make("div", { class: "actions" }, make("button", { type: "button", onclick: () => overTraining(over, run, at, group.id) }, "over training"), window.snapshot ? null : note));
  return make("div", { class: "side" }, place.beside ? make("h3", {}, `${run}, step ${at.step}`) : null, over, card, legend, responses, more);
}

function lazily(build) {
  // Long responses are made when they come near the window: a group may have a million tokens.
  const placeholder = make("article", { class: "response" });
  const observer = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) { observer.disconnect(); placeholder.replaceWith(build()); } }, { rootMargin: "600px" });
  observer.observe(placeholder);
  return placeholder;
}

async function overTraining(at, run, where, prompt) {
  const spec = { title: `${prompt}: reward over training`, help: "mean, lowest and highest of its responses", section: "", main: false, stack: false, lines: [{ label: "reward", metric: "reward", right: false, dashed: false }] };
  const box = make("div", { class: "over" }), said = make("p", { class: "quiet" });
  at.replaceChildren(box);
  box.append(said);
  try {
    const { sightings } = await allSightings(run, where.kind, prompt, ({ missing, sightings: some }) => { said.textContent = missing ? `${missing.toLocaleString("en")} files to index…` : `${some.length} ${some.length === 1 ? "step has" : "steps have"} this prompt`; });
    const own = sightings.filter((one) => one.mean !== null), x = own.map((one) => one.step);
    if (own.length > 1) {
      const chart = new CurveChart(spec, (_, step) => { const one = own[closest(x, step)]; go({ kind: where.kind, step: one.step, group: one.group, beside: place.beside }); });
      box.append(chart.plot);
      chart.lines = [{ label: "reward", metric: "reward", run, right: false, colour: 0, dash: [], x, steps: x, y: own.map((one) => one.mean), low: own.map((one) => one.low), high: own.map((one) => one.high) }];
      chart.draw();
    }
    box.append(make("div", { class: "controls", style: "margin: 8px 0 0" }, ...sightings.slice(-40).map((one) => make("button", { type: "button", disabled: one.step === where.step,
      onclick: () => go({ kind: where.kind, step: one.step, group: one.group, beside: place.beside }) }, `${one.step}: ${number(one.mean)}`))));
  } catch (error) { said.textContent = error.message; }
}

// ---- keys, theme, beginning

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const opened = !$("drill").hidden;
  const acts = opened ? { ArrowLeft: () => move(-1), ArrowRight: () => move(1), ArrowUp: () => moveGroup(-1), ArrowDown: () => moveGroup(1), Escape: () => go({}) }
    : { Enter: () => { if (event.target === document.body && state.chosen.length) openNearest(state.chosen[0], runs.get(state.chosen[0]).step); } };
  const act = acts[event.key];
  if (act) { if (event.key !== "Enter") event.preventDefault(); act(); }
});

$("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  for (const chart of state.drawn.values()) if (chart.lines.length || chart.bars.length) chart.draw();
});
$("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").querySelector("input").value.trim();
  sessionStorage.setItem("burnish-key", key);
  start().then(follow);
});
addEventListener("hashchange", route);
start().then(() => window.snapshot || follow());
