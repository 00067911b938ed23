"use strict";
// Of a page without a server (`burnish report`): answers like those of the board's server, from the data in this page.

const held = JSON.parse(document.getElementById("snapshot").textContent);

function heldPoints({ run, metric, axis, from, to }) {
  // Points of lines. What is summed over all steps stays so when only some of them are shown.
  const place = (places, step) => (axis === "step" ? step : places[step][axis === "tokens" ? 0 : 1]);
  const part = ({ drawn, places }, name) => {
    const { steps, y, total, count } = drawn[name] ?? { steps: [], y: [], total: 0, count: 0 };
    const x = steps.map((step) => place(places, step)), within = x.map((one) => one >= (from ?? -Infinity) && one <= (to ?? Infinity));
    const pick = (values) => values.filter((_, i) => within[i]);
    return { steps: pick(steps), x: pick(x), y: pick(y), total, count };
  };
  return Object.fromEntries([run].flat().map((name) => [name, Object.fromEntries([metric].flat().map((one) => [one, part(held.lines[name], one)]))]));
}

function heldGroups({ run, kind, step, low, high, status, why, domain, text }) {
  // The groups of a step with those of their responses that pass the filters, and how many do not.
  const file = held.details[run].rollouts.find((one) => one.kind === kind && one.step === step);
  const bounded = Boolean(low || high), wanted = (text ?? "").toLowerCase(), asked = (group) => promptText(group.prompt);
  const reason = (response) => (response.kept ? "kept" : response.why);
  const passes = (group, response) => (!bounded || (typeof response.reward === "number" && response.reward >= (low || -Infinity) && response.reward <= (high || Infinity)))
    && (!status || response.status === status) && (!why || reason(response) === why) && (!domain || group.domain === domain)
    && (!wanted || `${asked(group)}\n${response.tokens.join("")}`.toLowerCase().includes(wanted));
  const all = (file?.groups ?? []).map((group, place) => ({ group, place, shown: group.responses.filter((response) => passes(group, response)) }));
  const responses = all.flatMap(({ group }) => group.responses), known = (values) => [...new Set(values)].filter(Boolean).sort();
  return { groups: all.filter(({ shown }) => shown.length), left_out: responses.length - all.reduce((sum, { shown }) => sum + shown.length, 0),
    statuses: known(responses.map((response) => response.status)), reasons: known(responses.map(reason)), domains: known(all.map(({ group }) => group.domain)) };
}

function summaryOf({ group, place, shown }) {
  const rewards = shown.map((response) => (typeof response.reward === "number" ? response.reward : null)), scored = rewards.filter((reward) => reward !== null);
  return { group: place, prompt: group.id, asked: promptText(group.prompt), domain: group.domain, rewards, responses: shown.length,
    low: scored.length ? Math.min(...scored) : null, high: scored.length ? Math.max(...scored) : null,
    mean: scored.length ? scored.reduce((a, b) => a + b, 0) / scored.length : null, spread: scored.length ? Math.max(...scored) - Math.min(...scored) : 0 };
}

const heldAnswers = {
  runs: () => held.runs,
  charts: ({ run }) => {
    const known = (metric) => [run].flat().some((name) => metric in held.lines[name].drawn);
    const charts = held.charts.charts.map((chart) => ({ ...chart, lines: chart.lines.filter((line) => known(line.metric)) }));
    return { ...held.charts, charts: charts.filter((chart) => chart.lines.length) };
  },
  points: heldPoints,
  run: ({ run }) => held.details[run],
  pictures: ({ run }) => held.details[run].pictures,
  timeline: ({ run, steps }) => held.details[run].timelines[steps],
  configurations: ({ run }) => {
    const places = [run].flat().map((name) => Object.keys(held.lines).indexOf(name));
    const rows = held.configurations.rows.map((row) => ({ ...row, values: places.map((place) => row.values[place]) }));
    return { texts: held.configurations.texts, rows: rows.filter((row) => row.values.some(Boolean)).map((row) => ({ ...row, differs: new Set(row.values).size > 1 })) };
  },
  groups: ({ kind, step, ...rest }) => {
    const { groups, ...facts } = heldGroups({ kind, step, ...rest });
    return { kind, step, ...facts, groups: groups.map(summaryOf).sort((a, b) => b.spread - a.spread || a.group - b.group) };
  },
  group: (asked) => {
    const found = heldGroups(asked).groups.find(({ place }) => place === asked.group);
    if (!found) throw new Error(`step ${asked.step} has no such group, or none of its responses passes the filter`);
    return { group: { ...found.group, responses: found.shown }, first: 0, total: found.shown.length };
  },
  prompt: ({ run, kind, prompt }) => ({ missing: 0, sightings: held.details[run].rollouts.filter((file) => file.kind === kind).flatMap(({ step }) =>
    heldGroups({ run, kind, step }).groups.filter(({ group }) => group.id === prompt).map((found) => ({ step, ...summaryOf(found) }))) }),
};

window.snapshot = async (path, parameters) => heldAnswers[path](parameters);
