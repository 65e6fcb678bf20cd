// What a trial found: the match rate, what each rule takes, and examples of rows whose result an edit changed.
import { percent } from "../api.js";
import { make } from "../elements.js";

export function drawTrial(element, trial, last, names) {
  const earlier = new Map((last?.rules || []).map((each) => [each.name, each]));
  const side = (name) => `${trial[name].matched.toLocaleString()} of ${trial[name].rows.toLocaleString()} rows${change(trial[name].matched, last?.[name].matched)}`;
  const fact = (label, words) => [make("dt", {}, label), make("dd", {}, words)];
  element.replaceChildren(...[
    make("dl", { class: "facts" },
      fact("Matched", `${percent(trial.match_rate)} of ${trial.is_sample ? "a sample" : "all rows"}${last ? ` (before: ${percent(last.match_rate)})` : ""}`),
      fact(names.left, side("left")),
      fact(names.right, side("right")),
      fact("Ambiguous", `${trial.ambiguous.toLocaleString()} rows${change(trial.ambiguous, last?.ambiguous)}`)),
    table(["Rule", "Matches", `${names.left} rows`, `${names.right} rows`], trial.rules.map((each) => [
      each.name, each.matches.toLocaleString() + change(each.matches, earlier.get(each.name)?.matches), each.left.toLocaleString(), each.right.toLocaleString(),
    ])),
    trial.changes && changes(trial.changes, names),
  ].filter(Boolean));
}

function changes({ rows, examples }, names) {
  if (!rows) return make("p", { class: "hint" }, "The last edit changed no row's result.");
  return make("section", { "aria-label": "What the last edit changed" },
    make("h3", {}, `What the last edit changed: ${rows.toLocaleString()} ${rows === 1 ? "row" : "rows"}`),
    table(["Row", "Before", "Now"], examples.map((each) => [`${names[each.side]}: ${each.key}`, inWords(each.before), inWords(each.after)])));
}

const STATUSES = { confirmed: "matched" }; // as the run's page says it

function inWords({ status, rule, partner }) {
  return [STATUSES[status] || status, rule && `by ${rule}`, partner && `with ${partner}`].filter(Boolean).join(" ");
}

function table(heads, rows) {
  return make("div", { class: "scrolled" }, make("table", {},
    make("thead", {}, make("tr", {}, heads.map((name, place) => make("th", { scope: "col", class: place && heads.length > 3 ? "number" : null }, name)))),
    make("tbody", {}, rows.map(([first, ...others]) => make("tr", {}, make("th", { scope: "row" }, first), others.map((cell) => make("td", { class: heads.length > 3 ? "number" : null }, cell)))))));
}

function change(now, then) {
  if (then === undefined || now === then) return "";
  return ` (${now > then ? "+" : "−"}${Math.abs(now - then).toLocaleString()})`;
}
