// How an answer came about: time per stage, and for each leaf what was read and what was not.
import { make } from "./elements.js";
import { number } from "./answers.js";

// What a store tells of its reading, in this order; what else it tells follows.
const READ = new Map([
  ["segments", "segments touched"], ["segments_pruned", "segments pruned"],
  ["row_groups", "row groups touched"], ["row_groups_pruned", "row groups pruned"], ["rows", "rows"], ["bytes", "bytes"],
]);

export function explanationOf(explained) {
  return make(
    "div",
    { class: "explanation" },
    make("dl", { class: "figures" },
      figure("Total", took(explained.seconds)),
      figure(explained.leaves.length === 1 ? "Leaf" : "Leaves", number(explained.leaves.length)),
      figure("Series", number(explained.series)),
      figure("Samples read", number(explained.samples_read)),
      figure("Segments touched", number(explained.read.segments || 0)),
      figure("Segments pruned", number(explained.read.segments_pruned || 0))),
    make("section", { "aria-label": "Time per stage" }, make("h2", {}, "Time per stage"), stages(explained.stages)),
    make("section", { "aria-label": "Leaves" }, make("h2", {}, "Leaves"), explained.leaves.length ? explained.leaves.map(leaf) : make("p", { class: "none" }, "The expression reads no series.")),
    (explained.work_units || []).length > 0 && make("section", { "aria-label": "Work units" }, make("h2", {}, "Work units"), workUnits(explained.work_units)),
  );
}

// Which query worker did what: a leaf on a shard.
function workUnits(all) {
  const cell = (text) => make("td", { class: "number" }, text);
  const names = ["worker", "leaf", "shard", "segments in memory", "waited", "ran", "ready to fetch", "fetch", "rows", "bytes", "retries"];
  return make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, names.map((name, index) => make("th", { scope: "col", class: index ? "number" : null }, name)))),
    make("tbody", {}, all.map((one) => make("tr", {},
      make("th", { scope: "row" }, one.worker),
      cell(number(one.leaf + 1)), cell(number(one.shard)), cell(one.cache === "hit" ? "yes" : "no"),
      cell(took(one.wait_seconds)), cell(took(one.run_seconds)), cell(took(one.ready_to_fetch_seconds)), cell(took(one.fetch_seconds)),
      cell(number(one.rows)), cell(number(one.bytes)), cell(number(one.retries)))))));
}

function figure(name, value) {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value));
}

function stages(all) {
  const longest = Math.max(...all.map(({ seconds }) => seconds), 1e-9);
  return make("table", { class: "stages" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Stage"), make("th", { scope: "col", class: "number" }, "Time"), make("th", { scope: "col" }, make("span", { class: "unseen" }, "Share")))),
    make("tbody", {}, all.map(({ name, seconds }) => make("tr", {},
      make("th", { scope: "row" }, name),
      make("td", { class: "number" }, took(seconds)),
      make("td", { class: "bar" }, make("meter", { min: 0, max: longest, value: seconds, "aria-label": `${name}, of the longest stage` }))))));
}

function leaf(one) {
  const facts = [
    ["series", number(one.series)],
    ["samples", number(one.samples)],
    ["work", took(one.seconds)],
    ...inOrder(Object.keys(one.read)).map((name) => [words(name), amount(name, one.read[name])]),
    ["reads", `${moment(one.after)} to ${moment(one.until)}`],
    one.pushed_down && ["pushed down", one.pushed_down],
  ].filter(Boolean);
  return make("article", { class: "leaf" },
    make("pre", { class: "leaf-text" }, one.leaf),
    make("dl", { class: "facts inline" }, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
    one.shards.length > 1 && make("details", {}, make("summary", {}, `${one.shards.length} shards`), shards(one.shards)));
}

function shards(all) {
  const read = inOrder(all.flatMap((one) => Object.keys(one.read)));
  const cell = (text) => make("td", { class: "number" }, text);
  return make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ["shard", "series", "samples", "work", ...read.map(words)].map((name, index) => make("th", { scope: "col", class: index ? "number" : null }, name)))),
    make("tbody", {}, all.map((one) => make("tr", {},
      make("th", { scope: "row" }, String(one.shard)),
      cell(number(one.series)), cell(number(one.samples)), cell(took(one.seconds)),
      read.map((name) => cell(amount(name, one.read[name] || 0))))))));
}

function inOrder(names) {
  const given = new Set(names);
  return [...[...READ.keys()].filter((name) => given.has(name)), ...[...given].filter((name) => !READ.has(name)).sort()];
}

function words(name) {
  return READ.get(name) || name.replaceAll("_", " ");
}

function amount(name, value) {
  return name.includes("bytes") ? bytes(value) : number(value);
}

function bytes(value) {
  const unit = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  let rest = value;
  for (; rest >= 1000 && power < unit.length - 1; power += 1) rest /= 1000;
  return `${power ? rest.toPrecision(3) : rest} ${unit[power]}`;
}

export function took(seconds) {
  if (seconds < 0.001) return `${(seconds * 1000).toFixed(2)} ms`;
  if (seconds < 0.1) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
}

function moment(seconds) {
  return new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" });
}
