// A series in words: its name and labels as PromQL writes them.
import { make } from "./elements.js";
import { asLabel, quoted } from "./promql.js";

export function labelsOf(metric) {
  const { __name__: name = "", ...labels } = metric;
  const pairs = Object.entries(labels).map(([label, value], index) => [
    index > 0 ? ", " : "",
    make("span", { class: "label" }, make("span", { class: "label-name" }, asLabel(label)), "=", make("span", { class: "label-value" }, quoted(value))),
  ]);
  const braces = pairs.length > 0 || !name;
  return make("span", { class: "series" }, name && make("span", { class: "metric-name" }, name), braces && ["{", ...pairs, "}"]);
}
