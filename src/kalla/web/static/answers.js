// Answers as they are read: values in a table, warnings, an error with its place in the expression.
import { make } from "./elements.js";
import { indexOf } from "./promql.js";
import { labelsOf } from "./series.js";

const ROWS = 500;
const POINTS = 100; // of one series in a cell

/** The answer of an instant query. */
export function tableOf(data) {
  const { resultType, result } = data;
  if (resultType === "scalar" || resultType === "string") {
    return make("table", { class: "answers" }, head(resultType === "scalar" ? "Scalar" : "Text", "Value"), make("tbody", {}, row(make("span", { class: "none" }, resultType), valueCell(result[1]))));
  }
  if (!result.length) return nothing();
  const cell = ({ value, values }) => (value ? valueCell(value[1]) : pointsCell(values));
  const body = make("tbody", {}, result.slice(0, ROWS).map((one) => row(labelsOf(one.metric), cell(one))));
  const table = make("table", { class: "answers" }, head("Series", resultType === "matrix" ? "Samples" : "Value"), body);
  if (result.length <= ROWS) return table;
  const rest = make("p", { class: "more" }, `The first ${ROWS} of ${number(result.length)} series. `, make("button", {
    type: "button",
    onclick: () => {
      body.append(...result.slice(ROWS).map((one) => row(labelsOf(one.metric), cell(one))));
      rest.remove();
    },
  }, "Show all"));
  return [table, rest];
}

export function nothing() {
  return make("div", { class: "empty" }, make("p", {}, "No series."), make("p", {}, "The expression is valid; nothing fits it at this time."));
}

function head(...names) {
  return make("thead", {}, make("tr", {}, names.map((name, index) => make("th", { scope: "col", class: index ? "number" : null }, name))));
}

function row(name, cell) {
  return make("tr", {}, make("th", { scope: "row" }, name), cell);
}

function valueCell(text) {
  return make("td", { class: "number value" }, text);
}

function pointsCell(values) {
  const shown = values.slice(0, POINTS).map(([seconds, text]) => make("li", {}, make("b", {}, text), make("span", { class: "none" }, ` @ ${seconds.toFixed(3)}`)));
  const more = values.length > POINTS && make("li", { class: "none" }, `and ${number(values.length - POINTS)} more`);
  return make("td", { class: "number value" }, make("ol", { class: "points" }, shown, more));
}

/** What the answer says beside its values. */
export function remarks({ warnings = [], infos = [] }) {
  if (!warnings.length && !infos.length) return null;
  const list = (kind, texts) => texts.map((text) => make("li", { "data-kind": kind }, text));
  return make("ul", { class: "remarks", "aria-label": "Warnings" }, list("warning", warnings), list("info", infos));
}

/** An error in the API's words; where it names a place, the line with a caret below it. */
export function problemOf({ error, errorType }, expr) {
  const index = placeIn(error, expr);
  return make(
    "div",
    { class: "problem", role: "alert" },
    make("p", {}, errorType && make("span", { class: "problem-kind" }, errorType), error),
    index !== null && caretBelow(expr, index),
  );
}

/** The index in the expression that an error speaks of, or null. */
export function placeIn(error, expr) {
  const found = /(?:^|: )(\d+):(\d+): /.exec(error);
  return found ? indexOf(expr, Number(found[1]), Number(found[2])) : null;
}

function caretBelow(expr, index) {
  const start = expr.lastIndexOf("\n", index - 1) + 1;
  const end = expr.indexOf("\n", index);
  const line = expr.slice(start, end < 0 ? undefined : end);
  // A long line is shown around the place.
  const from = Math.max(0, index - start - 60);
  const before = (from ? "…" : "") + line.slice(from, index - start);
  const after = line.slice(index - start, index - start + 40);
  const cut = index - start + 40 < line.length ? "…" : "";
  return make("pre", { class: "place", "aria-hidden": "true" }, `${before}${after}${cut}\n${before.replace(/[^\t]/g, " ")}`, make("b", {}, "^"));
}

export function number(value) {
  return value.toLocaleString("en");
}
