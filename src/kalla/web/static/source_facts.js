// What is known of a source: its first rows, its columns, and how its file is written.
import { draw, make } from "./elements.js";

export function rowsTable({ columns, rows }) {
  return make("table", {}, head(columns), make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell) => make("td", {}, textOf(cell)))))));
}

export function profileTable(profile) {
  return [
    make("table", {},
      head(["Column", "Holds", "Empty", "Distinct", "Distribution", "From", "To", "Examples"]),
      make("tbody", {}, profile.columns.map((each) => make("tr", {},
        make("th", { scope: "row" }, each.name),
        make("td", {}, each.role),
        make("td", { class: "number" }, each.nulls.toLocaleString()),
        make("td", { class: "number" }, each.distinct.toLocaleString()),
        make("td", {}, each.histogram.length ? make("span", { class: "spark" }, spark(each.histogram)) : ""),
        make("td", {}, textOf(each.smallest)),
        make("td", {}, textOf(each.largest)),
        make("td", {}, each.examples.join(", ")))))),
    make("ul", { class: "notes" },
      make("li", {}, `${profile.rows.toLocaleString()} rows${profile.total ? ` of about ${profile.total.toLocaleString()}: the first were read` : ""}`),
      make("li", {}, `Primary key: ${profile.primary_key.join(", ") || "none found"} (${profile.primary_key_note})`),
      profile.notes.map((note) => make("li", {}, note))),
    decisionsList(profile.decisions, profile.format === "xlsx" ? "xlsx" : "csv"),
  ].filter(Boolean);
}

function decisionsList(decisions, kind) {
  if (!decisions.length) return null;
  return make("ul", { class: "notes" }, decisions.map((each) =>
    make("li", {}, make("code", {}, `${kind}.${each.option}: ${JSON.stringify(each.value)}`), ` ${each.is_sure ? "" : "(not sure) "}${each.reason}`)));
}

function spark(bins) {
  const most = Math.max(...bins.map((bin) => bin.rows), 1);
  const label = bins.map((bin) => `${bin.label}: ${bin.rows}`).join("; ");
  return draw("svg", { viewBox: `0 0 ${bins.length * 7} 18`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    draw("title", {}, label),
    bins.map((bin, place) => {
      const height = Math.max(bin.rows ? 1 : 0, (bin.rows / most) * 18);
      return draw("rect", { x: place * 7, y: 18 - height, width: 6, height });
    }));
}

function head(names) {
  return make("thead", {}, make("tr", {}, names.map((name) => make("th", { scope: "col" }, name))));
}

function textOf(value) {
  if (value === null) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
