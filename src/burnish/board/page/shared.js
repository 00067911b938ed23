"use strict";
// Pieces of the page, and responses. Everything shown is inserted as text nodes, never as HTML.
const SVG = "http://www.w3.org/2000/svg";
const tooltip = document.getElementById("tooltip");

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function draw(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function number(value) {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function showTooltip(event, ...content) {
  tooltip.replaceChildren(...content);
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  tooltip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
  tooltip.style.top = `${Math.max(8, Math.min(event.clientY + 14, innerHeight - height - 8))}px`;
}

// ---- rollouts

const view = { tint: "advantage", sort: "sample" };

function messageText(message) {
  // Everything in a turn: reasoning, content and tool calls.
  const calls = (message.tool_calls || []).map((call) => `${call.function.name}(${JSON.stringify(call.function.arguments)})`);
  return [message.reasoning_content ? `(${message.reasoning_content})` : "", message.content, ...calls].filter(Boolean).join("\n");
}

function promptText(prompt) {
  return typeof prompt === "string" ? prompt : prompt.map(messageText).join(" ");
}

function tintOf(response, index, scale) {
  if (view.tint === "value" && response.values) {
    const value = response.values[index], { low, high } = scale.value;
    return typeof value === "number" && high > low ? `rgba(var(--worth), ${(0.65 * ((value - low) / (high - low))).toFixed(3)})` : "";
  }
  if (view.tint === "logprob" && response.logprobs) {
    const value = response.logprobs[index];
    return typeof value === "number" ? `rgba(var(--surprise), ${(0.75 * Math.min(1, -value / 5)).toFixed(3)})` : "";
  }
  if (view.tint === "mismatch" && response.mismatch) {
    const value = response.mismatch[index];
    if (typeof value !== "number" || !scale.mismatch) return "";
    return `rgba(var(--${value > 0 ? "plus" : "minus"}), ${(0.7 * Math.min(1, Math.abs(value) / scale.mismatch)).toFixed(3)})`;
  }
  if (view.tint === "entropy" && response.entropy) {
    const value = response.entropy[index];
    return typeof value === "number" && scale.entropy ? `rgba(var(--surprise), ${(0.75 * Math.min(1, value / scale.entropy)).toFixed(3)})` : "";
  }
  if (view.tint === "version" && response.versions) {
    const place = response.versions.findLastIndex(([first]) => first <= index);
    return place < 0 ? "" : `color-mix(in srgb, var(--s${place % 8}) 28%, transparent)`;
  }
  if (view.tint === "advantage") {
    const value = response.advantages ? response.advantages[index] : response.advantage;
    if (typeof value !== "number" || value === 0 || !scale.advantage) return "";
    return `rgba(var(--${value > 0 ? "plus" : "minus"}), ${(0.6 * Math.min(1, Math.abs(value) / scale.advantage)).toFixed(3)})`;
  }
  return "";
}

function tintKey(scale) {
  // What the colours mean; null without any.
  const both = (share) => `linear-gradient(90deg, rgba(var(--minus), ${share}), transparent, rgba(var(--plus), ${share}))`;
  const one = (colour, share) => `linear-gradient(90deg, transparent, rgba(var(--${colour}), ${share}))`;
  const keys = {
    advantage: ["worse", "better", both(0.6)],
    logprob: ["expected", "surprising", one("surprise", 0.75)],
    mismatch: ["likelier to the sampler", "to the trainer", both(0.7)],
    value: [`value ${number(scale.value.low)}`, number(scale.value.high), one("worth", 0.65)],
    entropy: ["certain: 0", `${number(scale.entropy)} nats`, one("surprise", 0.75)],
    version: ["first weights", "later", `linear-gradient(90deg, ${[0, 1, 2, 3].map((i) => `color-mix(in srgb, var(--s${i}) 28%, transparent) ${25 * i}% ${25 * i + 25}%`).join(", ")})`],
  };
  if (!(view.tint in keys) || (view.tint === "value" && scale.value.low > scale.value.high) || (view.tint === "entropy" && !scale.entropy)) return null;
  const [low, high, fill] = keys[view.tint];
  return make("span", { class: "key" }, low, make("i", { style: `background: ${fill}` }), high);
}

function tokenNodes(text) {
  // Line ends get a visible mark, so that tokens of white space can be seen and hovered over.
  return text.split(/(\n)/).flatMap((part) => (part === "\n" ? [make("span", { class: "mark" }, "↵"), "\n"] : part ? [part] : []));
}

function tokenSpan(response, index, scale) {
  const span = make("span", { class: "token" }, ...tokenNodes(response.tokens[index]));
  const tint = tintOf(response, index, scale);
  if (tint) span.style.background = tint;
  span.addEventListener("pointerenter", (event) => {
    const advantage = response.advantages ? response.advantages[index] : response.advantage;
    const facts = [`token ${index + 1}  ${JSON.stringify(response.tokens[index])}`];
    if (response.logprobs) facts.push(`log-prob  ${number(response.logprobs[index])}`);
    if (advantage !== null && advantage !== undefined) facts.push(`advantage  ${number(advantage)}`);
    if (response.mismatch) facts.push(`trainer - sampler  ${number(response.mismatch[index])}`);
    if (response.entropy) facts.push(`entropy  ${number(response.entropy[index])}`);
    if (response.versions) facts.push(`weights  version ${response.versions.findLast(([first]) => first <= index)?.[1] ?? "–"}`);
    if (response.values) facts.push(`value  ${number(response.values[index])}`);
    if (response.returns) facts.push(`return  ${number(response.returns[index])}`);
    showTooltip(event, ...facts.map((fact) => make("span", {}, fact)));
  });
  span.addEventListener("pointerleave", () => { tooltip.hidden = true; });
  return span;
}

const chip = (text, kind = "") => make("span", { class: `chip ${kind}` }, text);
const ENDS = { length: "cut at", turns: "out of turns after", failed: "failed after" };

function chips(response) {
  const list = [chip(response.greedy ? "greedy" : `#${response.sample}`)];
  if (response.status === "ok") list.push(chip(`reward ${number(response.reward)}`, "reward"));
  else list.push(chip(`reward ${response.status}`, "bad"));
  for (const [name, part] of Object.entries(response.parts)) list.push(chip(`${name} ${number(part)}`));
  if (response.advantage !== null) list.push(chip(`A ${number(response.advantage)}`));
  if (response.environment !== undefined && response.environment !== response.parts.environment) list.push(chip(`environment paid ${number(response.environment)}`));
  const end = ENDS[response.finish];
  list.push(chip(`${end || "stop after"} ${response.count}`, response.finish === "failed" ? "bad" : end ? "warn" : ""));
  if (response.turns) {
    const turns = response.turns.filter((turn) => turn.author === "policy").length;
    list.push(chip(`${turns} ${turns === 1 ? "turn" : "turns"}${response.given ? `, ${response.given} more tokens read` : ""}`));
  }
  if (response.kept === false) list.push(chip(response.why || "not in the update", "warn"));
  return list;
}

// ---- turns of a conversation

const LONG = { characters: 400, lines: 8 };  // a longer text is folded

function folded(text) {
  const lines = text.split("\n");
  if (text.length <= LONG.characters && lines.length <= LONG.lines) return make("div", { class: "body" }, text);
  const size = `${text.length.toLocaleString("en")} characters, ${lines.length} ${lines.length === 1 ? "line" : "lines"}`;
  return make("details", { class: "fold" }, make("summary", {}, lines[0].slice(0, 80), make("small", {}, size)), make("div", { class: "body" }, text));
}

function callNode(call) {
  // Short arguments on one line, as in a program; those with several lines below it, such as a program itself.
  const short = call.arguments.every(([, text]) => text.length <= 60 && !text.includes("\n"));
  const line = short ? `(${call.arguments.map(([name, text]) => `${name}: ${text}`).join(", ")})` : "";
  return make("div", { class: "call" }, make("p", {}, make("b", {}, call.name), line),
    ...(short ? [] : call.arguments.flatMap(([name, text]) => [make("p", { class: "role" }, name), folded(text)])));
}

function givenSpan(response, index) {
  const span = make("span", { class: "token given" }, ...tokenNodes(response.tokens[index]));
  span.addEventListener("pointerenter", (event) => showTooltip(event,
    make("span", {}, `token ${index + 1}  ${JSON.stringify(response.tokens[index])}`), make("span", {}, "not sampled by the policy")));
  span.addEventListener("pointerleave", () => { tooltip.hidden = true; });
  return span;
}

function duration(seconds) {
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  if (seconds >= 60) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return seconds >= 0.1 ? `${Number(seconds.toPrecision(2))} s` : `${Number((1000 * seconds).toPrecision(2))} ms`;
}

function tookNode(seconds) {
  return typeof seconds === "number" ? make("span", { class: "took" }, ` · ${duration(seconds)}`) : null;
}

function timesNode(response) {
  // One line: how long the turns took, and the share of those who answered.
  if (!response.seconds) return null;
  const parts = Object.entries(response.seconds), all = parts.reduce((sum, [, seconds]) => sum + seconds, 0);
  const told = parts.map(([author, seconds]) => `${author === "tool" ? "tools" : author} ${duration(seconds)}${author === "policy" || seconds < 0.005 * all || !all ? "" : ` (${Math.round((100 * seconds) / all)} %)`}`);
  return make("p", { class: "meta times" }, told.length > 1 ? `${duration(all)} in all: ${told.join(", ")}` : told[0]);
}

function turnNode(response, turn, ordinal, scale) {
  const own = turn.author === "policy", indices = [];
  for (let i = turn.start; i < Math.min(turn.stop, response.tokens.length); i++) indices.push(i);
  const named = !own && turn.messages.length && turn.messages.every((message) => message.name);
  const took = turn.seconds ?? [], later = own ? took.slice(1) : took, each = later.length === turn.messages.length;
  const whole = own ? took[0] : each && named ? undefined : took.some((one) => one !== null) ? took.reduce((sum, one) => sum + (one ?? 0), 0) : undefined;
  const header = make("header", {}, named && whole === undefined ? null : make("span", { class: "role" }, own ? `turn ${ordinal}` : turn.author, tookNode(whole)),
    turn.reward === undefined ? null : chip(`reward of the turn ${number(turn.reward)}`, "reward"));
  const author = own ? "environment" : turn.author;  // what stands in a turn of the policy was said at the end
  const said = turn.messages.flatMap((message, i) => [message.name ? make("p", { class: "role" }, `${author}: ${message.name}`, tookNode(each ? later[i] : null)) :
    own ? make("p", { class: "role" }, author, tookNode(each ? later[i] : null)) : null, folded(message.text)]);
  if (own) {
    return make("section", { class: "turn own" }, header, make("div", { class: "body" }, ...indices.map((i) => tokenSpan(response, i, scale))),
      ...turn.calls.map(callNode), ...said);
  }
  const exact = make("details", { class: "fold" }, make("summary", {}, make("small", {}, `as the policy read it: ${indices.length} tokens`)));
  exact.addEventListener("toggle", () => {  // made when it is asked for: most readers never do, and there may be many
    if (exact.open && exact.children.length === 1) exact.append(make("div", { class: "body" }, ...indices.map((i) => givenSpan(response, i))));
  });
  return make("section", { class: "turn given" }, header, ...said, exact);
}

function turnNodes(response, scale) {
  let ordinal = 0;
  return response.turns.map((turn) => turnNode(response, turn, turn.author === "policy" ? ++ordinal : 0, scale));
}

function seenNode(text) {
  // The prompt of a conversation as the policy saw it: with the template's marks and what the environment added.
  return make("details", { class: "fold" }, make("summary", {}, make("small", {}, "as the policy read it")), make("div", { class: "body" }, text));
}

function responseCard(response, scale) {
  const body = response.turns
    ? make("div", { class: "turns" }, response.seen ? seenNode(response.seen) : null, ...turnNodes(response, scale))
    : make("div", { class: "body" }, ...response.tokens.map((_, i) => tokenSpan(response, i, scale)));
  const detail = response.detail ? make("p", { class: "meta" }, response.detail) : null;
  return make("article", { class: `response ${response.kept === false ? "dropped" : ""}` }, make("header", {}, ...chips(response)), timesNode(response), body, detail);
}

function advantageScale(group) {
  const values = group.responses.flatMap((r) => r.advantages || [r.advantage]).filter((v) => typeof v === "number");
  return values.reduce((most, v) => Math.max(most, Math.abs(v)), 0);
}

function valueRange(file) {
  // Over the whole step, so that the colours of easy and hard prompts can be compared.
  const values = file.groups.flatMap((g) => g.responses.flatMap((r) => r.values || [])).filter((v) => typeof v === "number");
  return values.reduce(({ low, high }, v) => ({ low: Math.min(low, v), high: Math.max(high, v) }), { low: Infinity, high: -Infinity });
}

function promptCard(group) {
  const card = make("div", { class: "prompt" });
  if (typeof group.prompt === "string") card.append(make("div", { class: "body" }, group.prompt));
  else {
    const body = make("div", { class: "body" });
    for (const message of group.prompt) body.append(make("p", { class: "role" }, message.role), messageText(message));
    card.append(body);
  }
  const facts = [group.id, group.domain === "default" ? "" : `domain ${group.domain}`, group.answer === null ? "" : `answer ${group.answer}`,
    group.left_out ? `${group.left_out} more responses in the file` : ""];
  if (group.seen) card.append(seenNode(group.seen));
  card.append(make("p", { class: "meta" }, facts.filter(Boolean).join("  ·  ")));
  return card;
}

function segmented(choices, current, choose) {
  return make("span", { class: "segmented" }, ...choices.map(([value, label]) =>
    make("button", { type: "button", "aria-pressed": value === current ? "true" : "false", onclick: () => choose(value) }, label)));
}

