// The report: everything shown comes from the two JSON elements of this page. `shared.js` comes before it.
const read = (id) => JSON.parse(document.getElementById(id).textContent);

// ---- curves

const curves = { smoothing: 0, log: false };

function smoothed(ys, weight) {
  // Exponential moving average with bias correction, so that it does not start near 0.
  let sum = 0, count = 0;
  return ys.map((y) => { sum = weight * sum + y; count = weight * count + 1; return sum / count; });
}

function usesLog(chart) {
  return curves.log && chart.kind === "line" && chart.series.every((s) => s.y.every((y) => y > 0));
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power++) {
    for (const m of high - low > 3 ? [1] : high - low > 1 ? [1, 3] : [1, 2, 5]) found.push(power + Math.log10(m));
  }
  const inside = found.filter((y) => y >= low && y <= high);
  return inside.length > 1 ? inside : ticks(10 ** low, 10 ** high, 4).map(Math.log10).filter((y) => y >= low && y <= high);
}

function bounds(chart) {
  const xs = chart.series.flatMap((s) => s.x);
  const ys = chart.kind === "stack" ? stacked(chart).flatMap((s) => [...s.bottom, ...s.top]) : chart.series.flatMap((s) => s.y);
  const range = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  const log = usesLog(chart);
  let [x0, x1] = range(xs), [y0, y1] = range(log ? ys.map(Math.log10) : ys);
  if (x0 === x1) { x0 -= 1; x1 += 1; }
  if (log) return { x0, x1, y0: y0 - (y1 - y0 || 1) * 0.06, y1: y1 + (y1 - y0 || 1) * 0.06 };
  const margin = y0 === y1 ? Math.abs(y0) * 0.1 || 1 : (y1 - y0) * 0.06;
  if (chart.kind === "scatter") return { x0: x0 - (x1 - x0) * 0.04, x1: x1 + (x1 - x0) * 0.04, y0: y0 - margin, y1: y1 + margin };
  return { x0, x1, y0: y0 >= 0 && y0 - margin < 0 ? 0 : y0 - margin, y1: y1 + margin };
}

function stacked(chart) {
  let base = chart.series[0].x.map(() => 0);
  return chart.series.map((series) => {
    const bottom = base, top = series.y.map((y, i) => y + bottom[i]);
    base = top;
    return { ...series, bottom, top };
  });
}

const COLOURS = 8;
const colour = (index) => `var(--s${index % COLOURS})`;
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
// With several runs, each run has a colour and each metric a dash pattern. With one run, each metric has a colour, and
// those beyond the colours a dash pattern as well.
const colourOf = (series, index) => colour(series.run ?? index);
const legendFill = (series, i) => {
  const own = colourOf(series, i);
  return `background: ${series.metric ?? Math.floor(i / COLOURS) ? `repeating-linear-gradient(90deg, ${own} 0 3px, transparent 3px 5px)` : own}`;
};
const dashOf = (series, i) => DASHES[(series.metric ?? Math.floor(i / COLOURS)) % DASHES.length];

function drawChart(svg, chart) {
  svg.replaceChildren();
  const width = svg.clientWidth || 390, height = 190, box = bounds(chart);
  const left = 52, right = width - 8, top = 10, bottom = height - 24;
  const X = (x) => left + ((x - box.x0) / (box.x1 - box.x0)) * (right - left);
  const log = usesLog(chart), scaled = log ? Math.log10 : (y) => y;
  const Y = (y) => bottom - ((scaled(y) - box.y0) / (box.y1 - box.y0)) * (bottom - top);
  for (const tick of log ? logTicks(box.y0, box.y1) : ticks(box.y0, box.y1, 4)) {
    const y = log ? 10 ** tick : tick;
    svg.append(draw("line", { x1: left, x2: right, y1: Y(y), y2: Y(y), stroke: "var(--grid)" }));
    svg.append(draw("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, number(Number(y.toPrecision(6)))));
  }
  for (const x of ticks(box.x0, box.x1, Math.max(2, Math.floor(width / 90)))) {
    const counts = chart.kind !== "scatter" && (chart.axis ?? "step") === "step";
    if (!counts || Number.isInteger(x)) svg.append(draw("text", { x: X(x), y: height - 8, "text-anchor": "middle" }, number(x)));
  }
  if (chart.kind === "stack") {
    stacked(chart).forEach((s, i) => {
      const up = s.x.map((x, k) => `${X(x)},${Y(s.top[k])}`), down = s.x.map((x, k) => `${X(x)},${Y(s.bottom[k])}`).reverse();
      svg.append(draw("polygon", { points: [...up, ...down].join(" "), fill: colour(i), "fill-opacity": i < COLOURS ? 0.75 : 0.4 }));
    });
  } else if (chart.kind === "scatter") {
    drawScatter(svg, chart, X, Y, box);
  } else {
    const smooths = curves.smoothing > 0 && !chart.axis;
    chart.series.forEach((s, i) => {
      const line = (ys, opacity) => svg.append(draw("polyline", {
        points: s.x.map((x, k) => `${X(x)},${Y(ys[k])}`).join(" "), fill: "none", stroke: colourOf(s, i),
        "stroke-width": 1.8, "stroke-linejoin": "round", "stroke-dasharray": dashOf(s, i), "stroke-opacity": opacity }));
      if (smooths) line(s.y, 0.22);
      line(smooths ? smoothed(s.y, curves.smoothing) : s.y, 1);
      if (s.x.length <= 30 && !smooths) s.x.forEach((x, k) => svg.append(draw("circle", { cx: X(x), cy: Y(s.y[k]), r: 2.4, fill: colourOf(s, i) })));
    });
  }
  const cursor = draw("g", { visibility: "hidden" });
  svg.append(cursor);
  const look = chart.kind === "scatter" ? hoverDot : hover;
  svg.onpointermove = (event) => look(event, svg, chart, { X, Y, box, left, right, top, bottom, cursor });
  svg.onpointerleave = () => { cursor.setAttribute("visibility", "hidden"); tooltip.hidden = true; };
}

function drawScatter(svg, chart, X, Y, box) {
  const low = Math.max(box.x0, box.y0), high = Math.min(box.x1, box.y1);
  if (low < high) svg.append(draw("line", { x1: X(low), y1: Y(low), x2: X(high), y2: Y(high), stroke: "var(--soft)", "stroke-dasharray": "4 4" }));
  chart.series.forEach((s, i) => {
    if (s.mark === "line") {
      svg.append(draw("polyline", { points: s.x.map((x, k) => `${X(x)},${Y(s.y[k])}`).join(" "), fill: "none", stroke: colour(i), "stroke-width": 1.8 }));
    }
    const size = s.mark === "line" ? 3 : 2, opacity = s.mark === "line" ? 1 : 0.35;
    s.x.forEach((x, k) => svg.append(draw("circle", { cx: X(x), cy: Y(s.y[k]), r: size, fill: colour(i), "fill-opacity": opacity })));
  });
}

function hoverDot(event, svg, chart, plot) {
  const area = svg.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top;
  let best = { far: Infinity };
  chart.series.forEach((s, i) => s.x.forEach((value, k) => {
    const far = (plot.X(value) - x) ** 2 + (plot.Y(s.y[k]) - y) ** 2;
    if (far < best.far) best = { far, i, label: s.label, value, result: s.y[k] };
  }));
  plot.cursor.replaceChildren(draw("circle", { cx: plot.X(best.value), cy: plot.Y(best.result), r: 5, fill: "none", stroke: colour(best.i) }));
  plot.cursor.setAttribute("visibility", "visible");
  showTooltip(event, make("b", {}, best.label), make("span", {}, `value  ${number(best.value)}`), make("span", {}, `return  ${number(best.result)}`));
}

function nearest(xs, wanted) {
  let best = 0;
  xs.forEach((x, i) => { if (Math.abs(x - wanted) < Math.abs(xs[best] - wanted)) best = i; });
  return best;
}

function hover(event, svg, chart, plot) {
  const offset = event.clientX - svg.getBoundingClientRect().left;
  const wanted = plot.box.x0 + ((offset - plot.left) / (plot.right - plot.left)) * (plot.box.x1 - plot.box.x0);
  const all = [...new Set(chart.series.flatMap((s) => s.x))];
  const step = all[nearest(all, wanted)];
  plot.cursor.replaceChildren(draw("line", { x1: plot.X(step), x2: plot.X(step), y1: plot.top, y2: plot.bottom, stroke: "var(--soft)", "stroke-dasharray": "3 3" }));
  const lines = [];
  chart.series.forEach((s, i) => {
    const k = s.x.indexOf(step);
    if (k < 0) return;
    if (chart.kind === "line") plot.cursor.append(draw("circle", { cx: plot.X(step), cy: plot.Y(s.y[k]), r: 4, fill: colourOf(s, i) }));
    const mean = curves.smoothing > 0 && chart.kind === "line" && !chart.axis ? `  smoothed ${number(smoothed(s.y, curves.smoothing)[k])}` : "";
    lines.push(make("span", {}, make("i", { style: `background:${colourOf(s, i)}` }), `${s.label}  ${number(s.y[k])}${mean}`));
  });
  plot.cursor.setAttribute("visibility", "visible");
  showTooltip(event, make("b", {}, `${chart.axis ?? "step"} ${step}`), ...lines);
}

function buildCurves(charts) {
  const place = document.getElementById("curves");
  const observer = new ResizeObserver((entries) => entries.forEach((entry) => drawChart(entry.target, entry.target.chart)));
  const redraw = () => place.querySelectorAll(".chart svg").forEach((svg) => drawChart(svg, svg.chart));
  const amount = make("span", {}, "0");
  place.append(make("div", { class: "tools" },
    make("label", {}, "smoothing", make("input", { type: "range", min: 0, max: 0.98, step: 0.01, value: 0, "aria-label": "Smoothing",
      oninput: (event) => { curves.smoothing = Number(event.target.value); amount.textContent = event.target.value; redraw(); } }), amount),
    make("label", { title: "for charts with only positive values" }, make("input", { type: "checkbox", onchange: (event) => { curves.log = event.target.checked; redraw(); } }), "logarithmic scale")));
  for (const section of [...new Set(charts.map((c) => c.section))]) {
    const grid = make("div", { class: "grid" });
    for (const chart of charts.filter((c) => c.section === section)) {
      const svg = draw("svg", { role: "img", "aria-label": `${chart.title} by ${chart.axis ?? "step"}` });
      svg.chart = chart;
      const legend = chart.series.length > 1
        ? make("div", { class: "legend" }, ...chart.series.map((s, i) => make("span", {}, make("i", { style: legendFill(s, i) }), s.label)))
        : make("div", { class: "legend" });
      grid.append(make("div", { class: "chart" }, make("h3", {}, chart.title, chart.help ? make("small", {}, chart.help) : null), legend, svg));
      observer.observe(svg);
    }
    const further = section === "Further";
    place.append(further ? make("details", {}, make("summary", {}, "Further metrics"), grid) : make("h2", {}, section), further ? "" : grid);
  }
}

// ---- rollouts

Object.assign(view, { run: 0, file: 0, group: 0, sort: "sample" });
const filter = { text: "", domain: "", low: null, high: null };

function passes(response) {
  if (filter.low === null && filter.high === null) return true;
  if (typeof response.reward !== "number") return false;
  return response.reward >= (filter.low ?? -Infinity) && response.reward <= (filter.high ?? Infinity);
}

function filtered(file) {
  // The groups of the file, with the responses that pass the filter. If the prompt contains the text, all are kept.
  const wanted = filter.text.toLowerCase(), has = (text) => text.toLowerCase().includes(wanted);
  const groups = file.groups.filter((group) => !filter.domain || group.domain === filter.domain).map((group) => {
    const asked = !wanted || has(promptText(group.prompt));
    return { ...group, responses: group.responses.filter((r) => passes(r) && (asked || has(r.tokens.join("")))) };
  });
  return { ...file, groups: groups.filter((group) => group.responses.length) };
}

function sorted(responses) {
  const list = [...responses];
  const value = (r) => (typeof r.reward === "number" ? r.reward : -Infinity);
  return view.sort === "reward" ? list.sort((a, b) => value(b) - value(a)) : list;
}

function promptList(file, refresh) {
  const rewards = file.groups.flatMap((g) => g.responses.map((r) => r.reward)).filter((r) => typeof r === "number");
  const low = Math.min(...rewards), high = Math.max(...rewards);
  return make("div", { class: "prompts", role: "group", "aria-label": "Prompts" }, ...file.groups.map((group, i) =>
    make("button", { type: "button", "aria-current": i === view.group ? "true" : null, onclick: () => { view.group = i; refresh(); } },
      make("span", { class: "text" }, promptText(group.prompt).trim().slice(-160) || "(empty prompt)"),
      make("span", { class: "facts" }, rewardDots(group, low, high), make("span", {}, `mean ${number(meanReward(group))}`)))));
}

function runChoice(runs, all, refresh) {
  if (runs.length < 2) return null;
  const choose = (event) => { view.run = Number(event.target.value); view.file = lastStep(all[view.run]); view.group = 0; refresh(); };
  return make("label", {}, "run", make("select", { onchange: choose }, ...runs.map((name, i) => make("option", { value: i, selected: i === view.run }, name))));
}

function filters(all, refresh) {
  const change = (name, read) => (event) => { filter[name] = read(event.target.value); view.group = 0; refresh(); };
  const bound = (text) => (text.trim() === "" || !Number.isFinite(Number(text)) ? null : Number(text));
  const domains = [...new Set(all.flat().flatMap((file) => file.groups.map((g) => g.domain)))].sort();
  const domain = domains.length > 1 ? make("label", {}, "domain", make("select", { onchange: change("domain", (v) => v) },
    make("option", { value: "" }, "all"), ...domains.map((name) => make("option", { value: name }, name)))) : null;
  return make("div", { class: "controls" },
    make("label", {}, "text", make("input", { type: "search", placeholder: "in prompt or response", oninput: change("text", (v) => v) })), domain,
    make("label", {}, "reward from", make("input", { type: "number", step: "any", "aria-label": "Lowest reward", oninput: change("low", bound) }),
      "to", make("input", { type: "number", step: "any", "aria-label": "Highest reward", oninput: change("high", bound) })));
}

function lastStep(files) {
  const firstTraining = files.findIndex((f) => f.kind === "step");
  return files.reduce((best, f, i) => (f.kind === "step" ? i : best), Math.max(firstTraining, 0));
}

function controls(runs, all, refresh) {
  const files = all[view.run];
  if (!files.length) return make("div", { class: "controls" }, runChoice(runs, all, refresh));
  const select = make("select", { "aria-label": "Step", onchange: (event) => { view.file = Number(event.target.value); view.group = 0; refresh(); } },
    ...files.map((file, i) => make("option", { value: i, selected: i === view.file }, `${file.kind === "eval" ? "evaluation after step" : "training step"} ${file.step}`)));
  const range = valueRange(files[view.file]);
  const hasValues = files.some((file) => file.groups.some((g) => g.responses.some((r) => r.values)));
  const tints = [["advantage", "advantage"], ["logprob", "log-prob"], ...(hasValues ? [["value", "value"]] : []), ["none", "none"]];
  const move = (by) => { view.file = Math.max(0, Math.min(files.length - 1, view.file + by)); view.group = Math.max(0, Math.min(view.group, files[view.file].groups.length - 1)); refresh(); };
  return make("div", { class: "controls" }, runChoice(runs, all, refresh),
    make("button", { type: "button", "aria-label": "Earlier", onclick: () => move(-1) }, "‹"), select,
    make("button", { type: "button", "aria-label": "Later", onclick: () => move(1) }, "›"),
    make("label", {}, "tint", segmented(tints, view.tint, (v) => { view.tint = v; refresh(); })), tintKey({ value: range }),
    make("label", {}, "order", segmented([["sample", "sample"], ["reward", "reward"]], view.sort, (v) => { view.sort = v; refresh(); })));
}

function buildBrowser(runs, all) {
  const place = document.getElementById("browser");
  if (!all.flat().length) { place.append(make("p", { class: "quiet" }, "No rollouts were recorded.")); return; }
  view.run = Math.max(0, all.findIndex((files) => files.length));
  view.file = lastStep(all[view.run]);
  const top = make("div", {}), panes = make("div", {});
  const refresh = () => {
    tooltip.hidden = true;
    top.replaceChildren(controls(runs, all, refresh));
    const file = all[view.run][view.file];
    panes.replaceChildren(!all[view.run].length ? make("p", { class: "quiet" }, "This run recorded no rollouts.")
      : file.groups.length ? rolloutPanes(filtered(file), panes, refresh) : make("p", { class: "quiet" }, "Nothing was sampled in this step."));
  };
  // The filter is not drawn again with the rest, so that it keeps the focus while the user types.
  place.replaceChildren(top, filters(all, refresh), panes);
  refresh();
}

function rolloutPanes(file, before, refresh) {
  if (!file.groups.length) return make("p", { class: "quiet" }, "No rollout of this step passes the filter.");
  view.group = Math.min(view.group, file.groups.length - 1);
  const kept = before.querySelector(".prompts"), position = kept ? kept.scrollTop : 0;
  const group = file.groups[view.group], list = promptList(file, refresh), range = valueRange(file);
  const cards = sorted(group.responses).map((r) => responseCard(r, { advantage: advantageScale(group), value: range }));
  requestAnimationFrame(() => { list.scrollTop = position; });
  return make("div", { class: "panes" }, list, make("div", {}, promptCard(group), make("div", { class: "responses" }, ...cards)));
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
buildCurves(read("chart-data"));
const recorded = read("rollout-data");
buildBrowser(recorded.runs, recorded.files);
