// The Query page: what is asked is in the address, so that a link, back and forward all show the same.
import { placeIn, number, problemOf, remarks, tableOf, nothing } from "./answers.js";
import { Editor } from "./editor.js";
import { make } from "./elements.js";
import { explanationOf, took } from "./explain.js";
import { Graph } from "./graph.js";
import { duration, inDuration } from "./promql.js";

const TABS = ["table", "graph", "explain"];
const POINTS = 250; // of a line, when the step is ours to choose
const find = (id) => document.getElementById(id);

const form = find("ask");
const editor = new Editor(form);
const fields = { range: find("range"), start: find("start"), end: find("end"), step: find("step"), of: find("of") };
const answer = find("answer");

let state = fromAddress(); // what is asked
let asked = null; // the question whose answer is on the page, or on its way: {state, at, answers, running}
let graph = null;
let settling = 0;
let shown = {}; // the moments as the fields were filled: what differs was typed

/* ---- the address ---- */

function fromAddress() {
  const values = new URLSearchParams(location.search);
  const range = duration(values.get("range") || "1h");
  const end = momentOf(values.get("end") || "");
  const tab = values.get("tab");
  return {
    expr: values.get("expr") || "",
    tab: TABS.includes(tab) ? tab : "table",
    range: range > 0 ? range : 3600000,
    end: Number.isNaN(end) ? null : end, // null: the present
    step: Number.isNaN(duration(values.get("step") || "")) ? "" : values.get("step"),
    of: values.get("of") === "graph" ? "graph" : "table",
  };
}

function addressOf(one) {
  const values = new URLSearchParams({ expr: one.expr, tab: one.tab, range: inDuration(one.range) });
  if (one.end !== null) values.set("end", new Date(one.end).toISOString().replace(".000Z", "Z"));
  if (one.step) values.set("step", one.step);
  if (one.tab === "explain") values.set("of", one.of);
  return `${location.pathname}?${values}`;
}

function remember() {
  const address = addressOf(state);
  if (address !== location.pathname + location.search) history.pushState({}, "", address);
}

/* ---- the fields ---- */

/** Everything but the expression, which may be typed and not yet run. */
function fill() {
  const range = inDuration(state.range);
  if (![...fields.range.options].some((option) => option.value === range)) fields.range.append(make("option", { value: range }, range));
  fields.range.value = range;
  shown = state.end === null ? { start: "", end: "" } : { start: momentText(state.end - state.range), end: momentText(state.end) };
  fields.start.value = shown.start;
  fields.start.placeholder = `${range} before`;
  fields.end.value = shown.end;
  fields.step.value = state.step;
  fields.of.value = state.of;
  for (const field of Object.values(fields)) field.setCustomValidity("");
  const kind = kindOf(state);
  find("end-label").textContent = kind === "graph" ? "To" : "At";
  for (const part of document.querySelectorAll("[data-in]")) {
    part.hidden = part.dataset.in === "explain" ? state.tab !== "explain" : kind !== "graph";
  }
  for (const tab of TABS) {
    const button = find(`tab-${tab}`);
    button.setAttribute("aria-selected", String(tab === state.tab));
    button.tabIndex = tab === state.tab ? 0 : -1;
  }
  answer.setAttribute("aria-labelledby", `tab-${state.tab}`);
}

/** Take over what the fields say; false if one of them says nonsense. */
function read() {
  state = { ...state, expr: editor.text.trim() ? editor.text : "", step: fields.step.value.trim(), range: duration(fields.range.value), of: fields.of.value };
  const step = duration(state.step || "1s");
  fields.step.setCustomValidity(step > 0 ? "" : "A duration like 30s, 5m or 1h30m, or a number of seconds");
  return fields.step.reportValidity() && readEnd() && readStart();
}

function readEnd() {
  const text = fields.end.value.trim();
  if (text === shown.end) return true;
  const end = text ? momentOf(text) : null;
  if (!believed(fields.end, end === null || !Number.isNaN(end))) return false;
  // Who has set both ends moves one of them; else the range stays and moves as a whole.
  const start = state.end === null ? NaN : state.end - state.range;
  if (end !== null && kindOf(state) === "graph" && start < end) state.range = end - start;
  state.end = end;
  return true;
}

function readStart() {
  const text = fields.start.value.trim();
  if (text === shown.start || !text) return true;
  const start = momentOf(text);
  const end = state.end === null ? present() : state.end;
  if (!believed(fields.start, !Number.isNaN(start))) return false;
  if (!believed(fields.start, start < end, "This must be before the end")) return false;
  state = { ...state, end, range: end - start };
  return true;
}

function believed(field, is, words = field.title) {
  field.setCustomValidity(is ? "" : words);
  return field.reportValidity();
}

function momentText(time) {
  const away = new Date(time).getTimezoneOffset() * 60000;
  return new Date(time - away).toISOString().slice(0, 19).replace("T", " ");
}

/** Milliseconds of a moment on the local clock, of a time today or of Unix seconds; NaN if it is none. */
function momentOf(text) {
  if (/^\d+(\.\d+)?$/.test(text)) return Math.round(Number(text) * 1000);
  if (/^\d\d?:\d\d(:\d\d)?$/.test(text)) return Date.parse(`${momentText(Date.now()).slice(0, 10)}T${text.padStart(text.length + (text.indexOf(":") === 1), "0")}`);
  return Date.parse(/^\d{4}-\d\d-\d\d$/.test(text) ? `${text}T00:00` : text.replace(" ", "T"));
}

function present() {
  return Math.ceil(Date.now() / 1000) * 1000;
}

function kindOf({ tab, of }) {
  return tab === "explain" ? of : tab;
}

/* ---- asking ---- */

function run() {
  clearTimeout(settling);
  if (!read()) return;
  remember();
  begin();
}

/** A new question; table, graph and explanation of it speak of the same moment. */
function begin() {
  cancel();
  fill();
  const at = state.end === null ? present() : state.end;
  asked = { ...state, at, answers: {}, running: null };
  show();
}

async function show() {
  const mine = asked;
  const kind = kindOf(state);
  if (!mine.expr) {
    showNothingAsked();
    return;
  }
  if (!mine.answers[kind]) {
    if (mine.running && mine.running.kind === kind) return; // its answer is on its way
    cancel();
    const running = { kind, asking: new AbortController() };
    mine.running = running;
    busy(true);
    const found = await ask(mine, kind, running.asking.signal);
    if (mine !== asked || mine.running !== running) return; // something else was asked meanwhile
    mine.running = null;
    busy(false);
    mine.answers[kind] = found;
  }
  if (kind === kindOf(state)) put(mine, mine.answers[kind], kind);
}

async function ask(mine, kind, signal) {
  const began = performance.now();
  const values = new URLSearchParams({ query: mine.expr, explain: "true" });
  if (kind === "graph") {
    const [start, end, step] = times(mine);
    values.set("start", start / 1000);
    values.set("end", end / 1000);
    values.set("step", step / 1000);
  } else values.set("time", mine.at / 1000);
  const path = kind === "graph" ? "/api/v1/query_range" : "/api/v1/query";
  const spent = () => (performance.now() - began) / 1000;
  try {
    const got = await fetch(path, { method: "POST", body: values, headers: { Accept: "application/json" }, signal });
    if (got.status === 401) window.checkLogin(); // of kalla.js
    const body = await got.json();
    if (body.status === "success") return { ...body, seconds: spent() };
    return { error: body.error || body.detail || body.title || `the server answered ${got.status}`, errorType: body.errorType };
  } catch (error) {
    if (signal.aborted) return { cancelled: true, seconds: spent() };
    return { error: `the server's answer did not arrive: ${error.message}` };
  }
}

/** Start, end and step of the graph, in milliseconds; it ends with the very moment of the table. */
function times({ at, range, step }) {
  const width = step ? duration(step) : Math.max(1000, Math.floor(range / POINTS / 1000) * 1000);
  return [at - Math.floor(range / width) * width, at, width];
}

function cancel() {
  if (asked && asked.running) asked.running.asking.abort();
}

/* ---- showing ---- */

let ticking = 0;

function busy(is) {
  clearInterval(ticking);
  find("cancel").disabled = !is;
  if (!is) {
    answer.removeAttribute("aria-busy");
    return;
  }
  answer.setAttribute("aria-busy", "true");
  if (!answer.hasChildNodes()) answer.replaceChildren(make("div", { class: "empty" }, make("p", {}, "Running…")));
  const began = Date.now();
  const passed = make("span", { "aria-hidden": "true" });
  find("said").replaceChildren("Running… ", passed);
  ticking = setInterval(() => { passed.textContent = took(Math.round((Date.now() - began) / 100) / 10); }, 500);
}

function say(text) {
  find("said").textContent = text;
}

function put(mine, found, kind) {
  if (graph) graph.leave();
  graph = null;
  if (found.cancelled) {
    delete mine.answers[kind];
    say(`Cancelled after ${took(found.seconds)}`);
    answer.replaceChildren(make("div", { class: "empty" }, make("p", {}, "Cancelled.")));
    return;
  }
  if (found.error) {
    say("");
    if (editor.text === mine.expr) editor.mark(placeIn(found.error, mine.expr));
    answer.replaceChildren(problemOf(found, mine.expr));
    return;
  }
  const { data } = found;
  const single = data.resultType === "scalar" || data.resultType === "string";
  say(`${single ? data.resultType : `${number(data.result.length)} series`} in ${took(found.seconds)}`);
  answer.replaceChildren(...[remarks(found), shape(mine, data)].flat().filter(Boolean));
  if (!data.result.length && state.tab !== "explain") guideIfEmpty(mine);
}

function shape(mine, data) {
  if (state.tab === "explain") return explanationOf(data.explain);
  if (state.tab === "table") return tableOf(data);
  if (!data.result.length) return nothing();
  const [start, end, step] = times(mine);
  graph = new Graph(data.result, { start, end, step, zoom });
  return graph.element;
}

function zoom(start, end) {
  const [from, to] = [Math.floor(start / 1000) * 1000, Math.ceil(end / 1000) * 1000];
  state = { ...state, end: to, range: to - from };
  fill();
  run();
}

function showNothingAsked() {
  busy(false);
  say("");
  answer.replaceChildren(make("div", { class: "empty" }, make("p", {}, "Type an expression above and run it.")));
  guideIfEmpty(asked);
}

/** Where there are no metrics at all, how to get some in is the better answer. */
async function guideIfEmpty(mine) {
  const names = await editor.names.metricNames();
  if (names && !names.length && mine === asked && state.tab !== "explain") answer.replaceChildren(find("guide").content.cloneNode(true));
}

/* ---- what a person does ---- */

function choose(tab, focus) {
  if (tab === "explain" && state.tab !== "explain") state.of = state.tab;
  state = { ...state, tab };
  fill();
  if (focus) find(`tab-${tab}`).focus();
  if (editor.text.trim() !== asked.expr.trim()) {
    run();
    return;
  }
  remember();
  if (graph) graph.leave();
  graph = null;
  if (!asked.answers[kindOf(state)]) answer.replaceChildren();
  show();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
find("cancel").addEventListener("click", cancel);

for (const tab of TABS) find(`tab-${tab}`).addEventListener("click", () => choose(tab, false));
document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  choose(TABS[(TABS.indexOf(state.tab) + by + TABS.length) % TABS.length], true);
});

// Enter changes a field and submits the form: that is one question, not two.
for (const field of [fields.range, fields.start, fields.end, fields.step]) {
  field.addEventListener("change", () => {
    clearTimeout(settling);
    settling = setTimeout(run);
  });
}
fields.of.addEventListener("change", () => {
  state.of = fields.of.value;
  choose("explain", false);
});

find("copy").addEventListener("click", async () => {
  const link = location.origin + addressOf({ ...state, end: asked.at });
  try {
    await navigator.clipboard.writeText(link);
  } catch {
    // Without https a page may not write to the clipboard by itself; what is selected can be copied.
    const field = make("textarea", { class: "unseen" }, link);
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  say("Link copied");
});

function restore() {
  state = fromAddress();
  editor.text = state.expr;
  begin();
}

addEventListener("popstate", restore);
restore();
if (!state.expr) editor.input.focus();
