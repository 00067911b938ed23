"use strict";
// Charts of curves: uPlot draws them, this file gives it lines, bands, layers, zoom, and files to keep.

const COLOURS = 8;
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];
const drawing = { axis: "step", smoothing: 0, log: false, bands: true, zoom: null };
const AXES = { step: "step", tokens: "tokens", time: "hours" };

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const paint = (index) => css(`--s${index % COLOURS}`);
const placeOf = (x) => (drawing.axis === "time" ? x / 3600 : x);

function smoothed(ys, weight) {
  // Exponential moving average with bias correction, so that it does not start near 0.
  let sum = 0, count = 0;
  return ys.map((y) => {
    if (y === null || y === undefined) return y;
    sum = weight * sum + y; count = weight * count + 1;
    return sum / count;
  });
}

function interpolated(xs, ys, wanted) {
  // Values at `wanted` (rising), null outside of the line.
  let i = 0;
  return wanted.map((x) => {
    if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) return null;
    while (i < xs.length - 1 && xs[i + 1] < x) i++;
    if (xs[i] === x || i === xs.length - 1) return ys[i];
    return ys[i] + ((ys[i + 1] - ys[i]) * (x - xs[i])) / (xs[i + 1] - xs[i]);
  });
}

function families(runs) {
  // Runs that differ in their seed only, in the order of the runs; a run without siblings is a family of its own.
  const found = new Map();
  for (const run of runs) {
    const key = drawing.bands && run.family ? run.family : `run ${run.name}`;
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(run);
  }
  return [...found.values()];
}

function ownPart(run, runs, part) {
  // Of a fork beside the run that it left only the steps of its own, from the one that both have.
  const shared = runs.some(({ folder }) => folder && folder === run.forked_from) ? part.steps.findIndex((step) => step >= run.forked_at) : 0;
  return shared > 0 ? { ...part, forked: true, steps: part.steps.slice(shared), x: part.x.slice(shared), y: part.y.slice(shared) } : part;
}

function linesOf(spec, runs, points) {
  // Lines to draw: of each family a mean with its band, or of each run and metric one line.
  const several = runs.length > 1, lines = [];
  for (const members of families(runs)) {
    spec.lines.forEach((line, k) => {
      const parts = members.filter((run) => points[run.name]?.[line.metric]?.x.length).map((run) => ownPart(run, runs, points[run.name][line.metric]));
      if (!parts.length) return;
      const name = members.length > 1 ? `${members[0].name} and ${members.length - 1} more ${members.length > 2 ? "seeds" : "seed"}` : members[0].name;
      const common = { metric: line.metric, right: line.right, run: members[0].name, colour: several ? members[0].colour : k,
        dash: several ? DASHES[k % DASHES.length] : line.dashed ? DASHES[1] : DASHES[Math.floor(k / COLOURS) % DASHES.length],
        label: several ? (spec.lines.length > 1 ? `${name}: ${line.label}` : name) : line.label };
      if (parts.length === 1) {
        lines.push({ ...common, forked: parts[0].forked, x: parts[0].x.map(placeOf), y: parts[0].y, steps: parts[0].steps });
        return;
      }
      const xs = [...new Set(parts.flatMap((part) => part.x))].sort((a, b) => a - b);
      const columns = parts.map((part) => interpolated(part.x, part.y, xs));
      const at = (reduce) => xs.map((_, i) => { const own = columns.map((c) => c[i]).filter((v) => v !== null); return own.length ? reduce(own) : null; });
      lines.push({ ...common, x: xs.map(placeOf), y: at((own) => own.reduce((a, b) => a + b, 0) / own.length), steps: interpolated(parts[0].x, parts[0].steps, xs),
        low: at((own) => Math.min(...own)), high: at((own) => Math.max(...own)) });
    });
  }
  return lines;
}

function layersOf(lines) {
  // Lines as layers on top of each other. A phase that is missing in a step took no time.
  const xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  let base = xs.map(() => 0);
  return lines.map((line) => {
    const own = new Map(line.x.map((x, i) => [x, line.y[i]]));
    const raw = xs.map((x) => own.get(x) ?? 0);
    base = base.map((value, i) => value + raw[i]);
    return { ...line, x: xs, raw, y: base };
  });
}

function barsOf(spec, runs, points) {
  // Of each run the mean of each layer over the steps that are shown. A phase that is missing in a step took no time.
  return runs.map((run) => ({ run: run.name, parts: spec.lines.flatMap(({ label, metric }, colour) => {
    const part = points[run.name]?.[metric];
    return part?.count && part.total ? [{ label, metric, colour, count: part.count, mean: part.total / part.count }] : [];
  }) })).filter(({ parts }) => parts.length);
}

function barsPicture(bars) {
  // One bar for each run, as wide as its container.
  const sum = ({ parts }) => parts.reduce((all, part) => all + part.mean, 0), most = Math.max(...bars.map(sum));
  const svg = draw("svg", { class: "bars", style: `width: 100%; height: ${36 * bars.length}px` });
  bars.forEach((bar, row) => {
    const top = 36 * row;
    svg.append(draw("text", { x: 0, y: top + 11, "font-size": 12, fill: css("--soft") }, bar.run), draw("text", { x: "100%", y: top + 11, "text-anchor": "end", "font-size": 12, style: `fill: ${css("--ink")}` }, `${number(Number(sum(bar).toPrecision(3)))} s`));
    let left = 0;
    for (const part of bar.parts) {
      const share = part.mean / most, box = draw("rect", { x: `${100 * left}%`, y: top + 16, width: `${100 * share}%`, height: 14, fill: paint(part.colour), "fill-opacity": 0.72 });
      box.addEventListener("pointermove", (event) => showTooltip(event, make("b", {}, `${bar.run}: ${part.label}`), make("span", {}, `${number(Number(part.mean.toPrecision(3)))} s, ${Math.round((100 * part.mean) / sum(bar))} %`)));
      box.addEventListener("pointerleave", () => { tooltip.hidden = true; });
      svg.append(box);
      left += share;
    }
  });
  return svg;
}

function side(columns) {
  // Columns of points next to each other, by rising x. Two points may have the same x, which uPlot.join would merge.
  const points = columns.flatMap(([xs, ys], k) => xs.map((x, i) => [x, k, ys[i]])).sort((a, b) => a[0] - b[0]);
  return [points.map(([x]) => x), ...columns.map((_, k) => points.map(([, own, y]) => (own === k ? y : undefined)))];
}

class CurveChart {
  // One chart of the page. `onStep(run, step)` is called with the point that was clicked.
  // Without `onZoom` it stands alone: by step or by its own axis, whatever the others show.
  constructor(spec, onStep, onZoom = null) {
    this.spec = spec; this.onStep = onStep; this.onZoom = onZoom; this.lines = []; this.bars = []; this.runs = [];
    this.legend = make("div", { class: "legend" });
    this.plot = make("div", { class: "plot" });
    const keep = [["CSV", () => this.asCsv()], ["SVG", () => this.asSvg()], ["PNG", () => this.asPng()]];
    this.card = make("article", { class: "chart", "aria-label": spec.title },
      make("header", {}, make("h3", {}, spec.title, spec.help ? make("small", {}, spec.help) : null),
        make("span", { class: "keep" }, ...keep.map(([name, act]) => make("button", { type: "button", "aria-label": `${spec.title} as ${name}`, onclick: act }, name)))),
      this.legend, this.plot);
    new ResizeObserver(() => { if (this.u && this.plot.clientWidth) this.u.setSize({ width: this.plot.clientWidth, height: this.plot.clientHeight || 210 }); }).observe(this.plot);
  }

  show(runs, points) {
    this.runs = runs;
    this.bars = this.spec.stack && runs.length > 1 ? barsOf(this.spec, runs, points) : [];
    this.lines = this.bars.length ? [] : linesOf(this.spec, runs, points);
    if (this.spec.stack) this.lines = layersOf(this.lines);
    this.draw();
  }

  draw() {
    this.u?.destroy();
    this.u = null;
    this.plot.replaceChildren();
    if (this.bars.length) { this.drawBars(); return; }
    if (!this.lines.length) { this.legend.replaceChildren("nothing measured yet"); return; }
    const ordered = this.spec.stack ? [...this.lines].reverse() : this.lines;
    const columns = [], series = [{}], bands = [];
    const add = (line, ys, options) => { columns.push([line.x, ys]); series.push({ scale: line.right ? "right" : "y", points: { show: line.x.length < 40 && !options.silent, size: 4 }, ...(line.dots ? { paths: () => null } : {}), ...options }); return series.length - 1; };
    const smooth = drawing.smoothing > 0 && !this.spec.stack;
    for (const line of ordered) {
      const colour = paint(line.colour);
      if (line.low) {
        const clear = { stroke: "transparent", width: 0, points: { show: false }, silent: true };
        const high = add(line, line.high, clear), low = add(line, line.low, clear);
        bands.push({ series: [high, low], fill: `color-mix(in srgb, ${colour} 18%, transparent)` });
      }
      if (smooth) add(line, line.y, { stroke: `color-mix(in srgb, ${colour} 30%, transparent)`, width: 1, points: { show: false }, silent: true });
      line.at = add(line, smooth ? smoothed(line.y, drawing.smoothing) : line.y, { stroke: colour, width: this.spec.stack ? 1 : 1.8, dash: this.spec.stack ? [] : line.dash,
        fill: this.spec.stack ? `color-mix(in srgb, ${colour} 72%, ${css("--card")})` : undefined, points: line.dots ? { show: true, size: 4, stroke: "transparent", fill: `color-mix(in srgb, ${colour} 40%, transparent)` } : line.forked ? { show: true, size: 9, fill: colour, filter: (u, k) => [u.data[k].findIndex((y) => y !== null && y !== undefined)] } : { show: !this.spec.stack && line.x.length < 40, size: 4, fill: colour } });
    }
    const data = ordered.some((line) => line.dots) ? side(columns) : uPlot.join(columns);
    const hasRight = this.lines.some((line) => line.right);
    const positive = this.lines.every((line) => line.y.every((y) => y === null || y > 0));
    const axis = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif", values: (u, values) => values.map((v) => (v === null ? "" : number(Number(v.toPrecision(6))))) };
    const flatRange = (u, low, high) => {
      if (low === null) return [0, 1];
      const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
      return [low >= 0 && low - margin < 0 ? 0 : low - margin, high + margin];
    };
    const scale = drawing.log && positive && !this.spec.stack ? { distr: 3 } : { range: flatRange };
    this.u = new uPlot({
      width: this.plot.clientWidth || 400, height: this.plot.clientHeight || 210, series: series.map((one) => ({ spanGaps: true, ...one })), bands, padding: [8, hasRight ? 4 : 14, 0, 0],
      legend: { show: false }, scales: { x: { time: false, range: (u, low, high) => (this.onZoom && drawing.zoom) || (low === high ? [low - 1, high + 1] : [low, high]) }, y: scale, right: { range: flatRange } },
      axes: [{ ...axis, grid: { show: false }, size: 28 }, { ...axis, size: 54 }, ...(hasRight ? [{ ...axis, scale: "right", side: 1, grid: { show: false }, size: 50 }] : [])],
      cursor: { y: false, sync: { key: `burnish ${this.onZoom ? drawing.axis : `${this.spec.title} alone`}`, scales: ["x", null] }, drag: { x: this.onZoom !== null, y: false, setScale: false }, points: { size: 6 } },
      hooks: { setCursor: [(u) => this.tell(u.cursor.idx)], setSelect: [(u) => this.zoomTo(u)] },
    }, data, this.plot);
    if (this.onZoom) this.u.over.addEventListener("dblclick", () => { drawing.zoom = null; this.onZoom(); });
    this.u.over.addEventListener("click", () => this.follow());
    this.tell(null);
  }

  axis() { return this.onZoom ? AXES[drawing.axis] : this.spec.axis ?? "step"; }

  phases() {
    // Of all bars, by label, with their colours.
    return new Map(this.bars.flatMap(({ parts }) => parts.map((part) => [part.label, paint(part.colour)])));
  }

  drawBars() {
    this.legend.replaceChildren(make("span", {}, window.snapshot ? "mean of all steps" : "mean of the steps shown"), ...[...this.phases()].map(([label, colour]) => make("span", {}, make("i", { style: `background: ${colour}` }), label)));
    this.plot.append(barsPicture(this.bars));
  }

  zoomTo(u) {
    if (u.select.width < 6 || !this.onZoom) return;
    drawing.zoom = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
    this.dragged = Date.now();
    this.onZoom();
  }

  follow() {
    const u = this.u;
    if (!u || Date.now() - (this.dragged || 0) < 300 || u.cursor.left < 0) return;
    const x = u.posToVal(u.cursor.left, "x");
    let best = null;
    for (const line of this.lines) {
      const i = closest(line.x, x);
      const far = Math.abs(u.valToPos(line.y[i] ?? 0, line.right ? "right" : "y") - u.cursor.top);
      if (!best || far < best.far) best = { far, run: line.run, step: Math.round(line.steps?.[i] ?? line.x[i]) };
    }
    if (best) this.onStep(best.run, best.step);
  }

  tell(index) {
    // The legend, with the values under the crosshair.
    const u = this.u, at = (line) => {
      if (index === null || index === undefined || !u) return null;
      const x = u.data[0][index], i = closest(line.x, x);
      return line.x[i] === x ? (line.raw ?? u.data[line.at])[line.raw ? i : index] : null;
    };
    const x = index === null || index === undefined || !u ? "" : number(Number(u.data[0][index].toPrecision(6)));
    const named = this.lines.length > 1 || this.runs.length > 1 || this.lines[0]?.label.includes(" = ");
    this.legend.replaceChildren(make("span", {}, this.axis(), make("b", {}, x)), ...this.lines.map((line) => {
      const value = at(line), key = make("i", {});
      key.style.background = line.dash.length ? `repeating-linear-gradient(90deg, ${paint(line.colour)} 0 3px, transparent 3px 5px)` : paint(line.colour);
      return make("span", {}, ...(named ? [key, line.label] : []), make("b", {}, value === null || value === undefined ? "" : number(value)));
    }));
  }

  asCsv() {
    const text = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
    const means = this.bars.flatMap(({ run, parts }) => parts.map(({ metric, count, mean }) => [run, metric, count, Number(mean.toPrecision(7))]));
    const rows = means.length ? [["run", "metric", "steps", "mean"], ...means] : [["run", "metric", this.axis(), "value"], ...this.lines.flatMap((line) => line.x.map((x, i) => [line.run, line.metric, x, (line.raw ?? line.y)[i]]))];
    download(`${this.name()}.csv`, new Blob([rows.map((row) => row.map((cell) => text(String(cell ?? ""))).join(",")).join("\n") + "\n"], { type: "text/csv" }));
  }

  asSvg() { download(`${this.name()}.svg`, new Blob([new XMLSerializer().serializeToString(this.picture())], { type: "image/svg+xml" })); }

  asPng() {
    const image = new Image(), svg = new XMLSerializer().serializeToString(this.picture());
    image.onload = () => {
      const canvas = make("canvas", { width: 2 * image.width, height: 2 * image.height });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => download(`${this.name()}.png`, blob));
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  }

  name() { return this.spec.title.toLowerCase().replace(/[^a-z0-9]+/g, "-"); }

  pictureOfBars() {
    const phases = [...this.phases()], top = 40 + 18 * Math.ceil(phases.length / 3), height = top + 36 * this.bars.length + 16;
    const svg = draw("svg", { xmlns: SVG, viewBox: `0 0 720 ${height}`, width: 720, height, "font-family": "sans-serif", "font-size": 12 }), inside = draw("svg", { x: 16, y: top + 8, width: 688, height: height - top });
    inside.append(barsPicture(this.bars));
    svg.append(draw("rect", { width: 720, height, fill: css("--card") }), draw("text", { x: 16, y: 22, fill: css("--ink"), "font-size": 15, "font-weight": 600 }, `${this.spec.title}: mean of a step`), inside);
    phases.forEach(([label, colour], i) => svg.append(draw("rect", { x: 16 + (i % 3) * 230, y: 33 + 18 * Math.floor(i / 3), width: 12, height: 4, fill: colour }), draw("text", { x: 34 + (i % 3) * 230, y: 40 + 18 * Math.floor(i / 3), fill: css("--ink") }, label)));
    return svg;
  }

  picture() {
    // The chart as it is on the page, for a paper: 720 x 420.
    if (this.bars.length) return this.pictureOfBars();
    const svg = draw("svg", { xmlns: SVG, viewBox: "0 0 720 420", width: 720, height: 420, "font-family": "sans-serif", "font-size": 12 });
    const left = 66, right = this.lines.some((line) => line.right) ? 650 : 704, top = 40 + 18 * Math.ceil(this.lines.length / 3), bottom = 376, u = this.u;
    const reach = (scale) => [u.scales[scale].min, u.scales[scale].max, u.scales[scale].distr === 3 ? Math.log10 : (v) => v];
    const [x0, x1] = reach("x"), X = (x) => left + ((x - x0) / (x1 - x0)) * (right - left);
    const Y = (scale) => { const [low, high, f] = reach(scale); return (y) => bottom - ((f(y) - f(low)) / (f(high) - f(low))) * (bottom - top); };
    svg.append(draw("rect", { width: 720, height: 420, fill: css("--card") }), draw("text", { x: left, y: 22, fill: css("--ink"), "font-size": 15, "font-weight": 600 }, this.spec.title));
    const clip = draw("clipPath", { id: "inside" });
    clip.append(draw("rect", { x: left, y: top, width: right - left, height: bottom - top }));
    svg.append(clip);
    const marks = [["y", left - 8, "end"], ...(right < 700 ? [["right", right + 8, "start"]] : [])];
    for (const [scale, x, anchor] of marks) for (const y of ticks(...reach(scale).slice(0, 2), 5)) if (y > 0 || u.scales[scale].distr !== 3) {
      if (scale === "y") svg.append(draw("line", { x1: left, x2: right, y1: Y(scale)(y), y2: Y(scale)(y), stroke: css("--grid") }));
      svg.append(draw("text", { x, y: Y(scale)(y) + 4, "text-anchor": anchor, fill: css("--soft") }, number(Number(y.toPrecision(6)))));
    }
    for (const x of ticks(x0, x1, 7)) svg.append(draw("text", { x: X(x), y: bottom + 18, "text-anchor": "middle", fill: css("--soft") }, number(Number(x.toPrecision(6)))));
    svg.append(draw("text", { x: (left + right) / 2, y: 412, "text-anchor": "middle", fill: css("--soft") }, this.axis()));
    this.lines.forEach((line, i) => {
      const y = Y(line.right ? "right" : "y"), colour = paint(line.colour), path = (ys) => line.x.map((x, k) => (ys[k] === null || ys[k] === undefined ? null : `${X(x).toFixed(1)},${y(ys[k]).toFixed(1)}`)).filter(Boolean);
      const ys = drawing.smoothing > 0 && !this.spec.stack ? smoothed(line.y, drawing.smoothing) : line.y;
      if (line.low) svg.append(draw("polygon", { points: [...path(line.high), ...path(line.low).reverse()].join(" "), fill: colour, "fill-opacity": 0.18, "clip-path": "url(#inside)" }));
      svg.append(draw("polyline", { points: path(ys).join(" "), fill: "none", stroke: colour, "stroke-width": 1.8, "stroke-dasharray": line.dash.join(" "), "clip-path": "url(#inside)" }));
      if (line.forked) svg.append(draw("circle", { cx: X(line.x[0]), cy: y(ys[0]), r: 4.5, fill: colour, "clip-path": "url(#inside)" }));
      svg.append(draw("rect", { x: left + (i % 3) * 210, y: 33 + 18 * Math.floor(i / 3), width: 12, height: 4, fill: colour }), draw("text", { x: left + 18 + (i % 3) * 210, y: 40 + 18 * Math.floor(i / 3), fill: css("--ink") }, line.label.slice(0, 34)));
    });
    return svg;
  }
}

function closest(xs, wanted) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < wanted) low = middle; else high = middle; }
  return Math.abs(xs[low] - wanted) <= Math.abs(xs[high] - wanted) ? low : high;
}

function download(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
