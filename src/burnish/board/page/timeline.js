"use strict";
// Which process was at work when, in the last steps of a run or in those up to a step.

const period = { run: null, step: null, steps: 3, asked: 0 };

async function drawTimeline(run) {
  if (period.run !== run) Object.assign(period, { run, step: null });
  const turn = ++period.asked;
  try {
    const found = await ask("timeline", { run, step: period.step, steps: period.steps });
    if (turn === period.asked && period.run === run && state.chosen[0] === run) showTimeline(found);
  } catch (error) { failed(error); }
}

function showTimeline(found) {
  const at = $("timeline"), focus = document.activeElement?.getAttribute("aria-label");
  if (!found.lanes.length && period.step === null) { at.replaceChildren(); return; }
  const move = (step) => { period.step = step >= found.newest ? null : Math.max(1, step); drawTimeline(period.run); };
  const several = [["1", "1 step"], ["3", "3"], ["10", "10"]], count = (value) => { period.steps = Number(value); drawTimeline(period.run); };
  at.replaceChildren(make("h2", {}, state.chosen.length > 1 ? `Timeline of ${period.run}` : "Timeline"),
    make("div", { class: "controls" }, ...(window.snapshot ? [`up to step ${found.step}`] : [make("button", { type: "button", "aria-label": "Earlier in the timeline", onclick: () => move(found.step - period.steps) }, "‹"),
      make("label", {}, "up to step", make("input", { type: "number", min: 0, value: found.step, "aria-label": "Step of the timeline", onchange: (event) => move(Number(event.target.value)) })),
      make("button", { type: "button", "aria-label": "Later in the timeline", onclick: () => move(found.step + period.steps) }, "›")]), segmented(several, String(period.steps), count),
      window.snapshot ? null : make("span", { class: "quiet" }, period.step === null ? "follows the run" : "")),
    ...(found.lanes.length ? [make("div", { class: "lanes" }, lanesOf(found), legendOf(found.lanes)), sharesOf(found)] : [make("p", { class: "quiet" }, "Nothing is recorded of these steps.")]));
  if (focus?.includes("timeline")) [...at.querySelectorAll("[aria-label]")].find((node) => node.getAttribute("aria-label") === focus)?.focus();
}

const percent = (share) => `${Math.round(100 * share)} %`;
const seconds = (value) => (value < 1 ? `${number(Number((1000 * value).toPrecision(3)))} ms` : `${number(Number(value.toPrecision(3)))} s`);

// Phases of the run and requests to others have the same colour if they have the same name: update and policy.update.
const nameOf = (work) => work.slice(work.lastIndexOf(".") + 1);
const worksOf = (lanes) => [...new Set(lanes.flatMap((lane) => lane.spans.map(([work]) => nameOf(work))))];
const colourOf = (works, work) => `var(--s${works.indexOf(nameOf(work)) % 8})`;

function legendOf(lanes) {
  const works = worksOf(lanes), entry = (work) => { const chip = make("i", {}); chip.style.background = colourOf(works, work); return make("span", {}, chip, work); };
  return make("div", { class: "legend" }, ...works.map(entry));
}

function lanesOf({ lanes, seconds: whole, ends }) {
  const left = 150, width = 1000, row = 24, height = row * lanes.length, works = worksOf(lanes);
  const x = (moment) => left + ((width - left) * moment) / whole;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height + 22}`, role: "img", "aria-label": "Work of each process over time" });
  lanes.forEach((lane, i) => {
    svg.append(draw("text", { x: 0, y: i * row + 15 }, lane.process), draw("rect", { class: "lane", x: left, y: i * row + 3, width: width - left, height: row - 6 }));
    for (const [work, began, ended] of lane.spans) {
      const bar = draw("rect", { x: x(began), y: i * row + 3, width: Math.max(0.6, x(ended) - x(began)), height: row - 6, fill: colourOf(works, work) });
      bar.addEventListener("mousemove", (event) => showTooltip(event, make("b", {}, `${lane.process}: ${work}`), make("div", {}, `${seconds(ended - began)}, from ${seconds(began)}`)));
      bar.addEventListener("mouseleave", () => { tooltip.hidden = true; });
      svg.append(bar);
    }
  });
  for (const [step, end] of Object.entries(ends)) svg.append(draw("line", { class: "end", x1: x(end), x2: x(end), y1: 0, y2: height }), draw("text", { x: x(end) - 3, y: height + 15, "text-anchor": "end" }, `step ${step}`));
  return svg;
}

function sharesOf({ lanes, phases, seconds: whole }) {
  const names = Object.entries(phases).sort((a, b) => b[1] - a[1]).map(([name]) => name), main = lanes[0], others = lanes.slice(1);
  const head = make("tr", {}, make("th", {}, `at work in ${seconds(whole)}`), make("th", {}, "overall"), ...names.map((name) => make("th", {}, `during ${name}`)));
  const rows = others.map((lane) => make("tr", {}, make("th", {}, lane.process), make("td", {}, percent(lane.at_work)), ...names.map((name) => make("td", {}, percent(lane.during[name])))));
  const share = make("tr", {}, make("th", {}, main.process), make("td", {}, percent(main.at_work)), ...names.map((name) => make("td", {}, percent(phases[name]))));
  const remark = others.length ? "First row: the run's own time by phase. Below it: the share of each phase in which a process was at work; for the rest of it, it waited." : "The run's own time by phase.";
  return make("div", {}, make("div", { class: "table" }, make("table", {}, make("thead", {}, head), make("tbody", {}, share, ...rows))), make("p", { class: "quiet" }, remark));
}
