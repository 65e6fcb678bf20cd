// The rules of a recipe as a form. It is drawn from the document and tells `edit` what a person changed.
import { make } from "../elements.js";
import { spelled } from "./document.js";
import { sideNames } from "./names.js";

const OPS = {
  eq: "equals", tolerance: "is within an amount of", date_window: "is within days of", contains: "contains", startswith: "begins with",
  endswith: "ends with", fuzzy: "is similar to", ne: "is not", lt: "is less than", lte: "is at most", gt: "is more than", gte: "is at least",
};
const AMOUNTS = [["absolute", "up to"], ["percent", "up to %"], ["below", "less by"], ["above", "more by"], ["below_percent", "less by %"], ["above_percent", "more by %"]];
const DAYS = [["days", "days"], ["before", "days before"], ["after", "days after"]];
const CARDINALITIES = ["1:1", "1:N", "N:1", "M:N"];
const PREPARED = [["", "as it is"], ["trim", "without surrounding spaces"], ["trim,upper", "ignoring case"], ["digits", "digits only"]];
const FILTERS = {
  eq: "is", ne: "is not", lt: "is less than", lte: "is at most", gt: "is more than", gte: "is at least", in: "is one of", not_in: "is none of",
  contains: "contains", startswith: "begins with", endswith: "ends with", is_null: "is empty", not_null: "is not empty",
};
const SHOWN_RULE = new Set(["name", "cardinality", "conditions", "left_filters", "right_filters"]);
const CSV_FIELDS = [
  ["encoding", "Encoding"], ["delimiter", "Delimiter"], ["decimal", "Decimal sign"], ["thousands", "Thousands sign"], ["date_format", "Date format"],
  ["skip", "Lines before the header", wholeNumber], ["footer", "Lines after the last row", wholeNumber],
];
const XLSX_FIELDS = [["sheet", "Sheet"], ["header_row", "Row of the header", wholeNumber], ["footer", "Rows at the end that are sums or notes", wholeNumber]];
const SIDE_FIELDS = [["amount", "Amount", "the column whose sum must agree"], ["currency", "Currency", ""], ["primary_key", "Row key", "columns that identify a row, with commas"]];

/** Draws `recipe` into `element`. `edit` has set, add, remove and move; `columns` are those of each side, `fileNames` those of uploads. */
export function drawForm(element, recipe, { columns, fileNames }, edit) {
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.path : null;
  const open = new Set([...element.querySelectorAll("details[open]")].map((each) => each.dataset.side));
  const names = sideNames(recipe.sources, fileNames);
  const form = new Form({ recipe, columns, names, fileNames, edit, open });
  element.replaceChildren(...form.parts());
  if (focused) element.querySelector(`[data-path="${CSS.escape(focused)}"]`)?.focus();
}

/** A sentence instead of the form, where there is none. */
export function drawReason(element, text) {
  element.replaceChildren(make("p", { class: "empty" }, text));
}

/** Why a recipe has no form; null if it has one. */
export function reasonForNone(recipe) {
  if (recipe.match_sql) return "This recipe matches by SQL: edit it as text.";
  const isNew = Array.isArray(recipe.rules) && recipe.rules.every((rule) => Array.isArray(rule?.conditions));
  return isNew && recipe.sources ? null : "The form shows recipes with `sources` and `rules`: this one is edited as text.";
}

/** Mark the fields of problems; those with no field of their own are returned. */
export function markFields(element, problems) {
  for (const each of element.querySelectorAll(".field-problem")) each.remove();
  for (const each of element.querySelectorAll("[aria-invalid]")) {
    each.removeAttribute("aria-invalid");
    each.removeAttribute("aria-describedby");
  }
  return problems.filter((problem, index) => {
    const field = problem.path && fieldFor(element, problem.path);
    if (!field) return true;
    const id = `field-problem-${index}`;
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-describedby", id);
    (field.closest(".condition") || field.closest(".field, .rule")).append(make("p", { class: "field-problem", id }, problem.message + (problem.suggestion ? ` (${problem.suggestion})` : "")));
    return false;
  });
}

function fieldFor(element, path) {
  // A key may be any text, such as foo[bar: what cannot be shortened has no field.
  for (let at = path, longer = null; at !== longer; longer = at, at = at.replace(/(\.[^.[]+|\[\d+\])$/, "")) {
    const field = element.querySelector(`input[data-path="${CSS.escape(at)}"], select[data-path="${CSS.escape(at)}"]`);
    if (field) return field;
  }
  return null;
}

class Form {
  constructor(given) {
    Object.assign(this, given);
  }

  parts() {
    const rules = this.recipe.rules;
    return [
      ...["left", "right"].map((side) => make("datalist", { id: `${side}-columns` }, (this.columns[side] || []).map((name) => make("option", { value: name })))),
      make("div", { class: "rule-sources" }, ["left", "right"].map((side) => this.source(side))),
      ...rules.map((rule, index) => this.rule(rule, index, rules.length)),
      make("p", { class: "add" }, make("button", { type: "button", onclick: () => this.addRule() }, "Add a rule")),
    ];
  }

  source(side) {
    const source = this.recipe.sources?.[side] || {};
    const uri = String(source.uri || "");
    return make("fieldset", { class: "rule-source" },
      make("legend", {}, this.names[side], make("span", { class: "said" }, this.fileNames[uri] || (uri === `source://${this.names[side]}` ? "" : uri))),
      SIDE_FIELDS.map(([name, label, title]) => {
        const value = source[name];
        return this.input(["sources", side, name], label, Array.isArray(value) ? value.join(", ") : value, {
          list: `${side}-columns`, title, read: name === "primary_key" ? (text) => text.split(",").map((each) => each.trim()).filter(Boolean) : undefined,
        });
      }),
      this.written(side, source, /\.xlsx$/i.test(this.fileNames[uri] || uri) || source.xlsx));
  }

  /** How a file is written, as it was found or said. */
  written(side, source, isWorkbook) {
    const [kind, fields] = isWorkbook ? ["xlsx", XLSX_FIELDS] : ["csv", CSV_FIELDS];
    const given = source[kind] || {};
    return make("details", { class: "file-options", "data-side": side, open: this.open.has(side) },
      make("summary", {}, "How the file is written"),
      make("div", { class: "file-fields" }, fields.map(([name, label, read]) => this.input(["sources", side, kind, name], label, given[name], { read, size: 8 }))));
  }

  rule(rule, index, total) {
    const path = ["rules", index];
    const more = Object.keys(rule).filter((name) => !SHOWN_RULE.has(name));
    const act = (label, text, work, off) => make("button", { type: "button", class: "quiet", "aria-label": `${label} rule ${index + 1}`, title: label, disabled: off, onclick: work, "data-path": `${spelled(path)}:${label}` }, text);
    return make("fieldset", { class: "rule", "data-rule": index },
      make("legend", {}, `Rule ${index + 1}`),
      make("div", { class: "rule-head" },
        this.input([...path, "name"], "Name", rule.name),
        this.select([...path, "cardinality"], "Matches", rule.cardinality || "1:1", CARDINALITIES.map((each) => [each, each])),
        make("span", { class: "rule-acts" },
          act("Move up", "↑", () => this.edit.move(path, -1), index === 0),
          act("Move down", "↓", () => this.edit.move(path, 1), index === total - 1),
          act("Remove", "Remove", () => this.edit.remove(path), total === 1))),
      this.filters(rule),
      rule.conditions.map((condition, place) => this.condition(condition || {}, [...path, "conditions", place], rule.conditions.length)),
      make("p", { class: "add" }, make("button", { type: "button", class: "quiet", "data-path": `${spelled(path)}:add`, onclick: () => this.edit.add([...path, "conditions"], { left: "", op: "eq", right: "" }, true) }, "Add a condition")),
      more.length ? make("p", { class: "hint" }, `Also set, as text only: ${more.join(", ")}`) : null);
  }

  /** Which rows a rule takes, in words: they are edited in the text. */
  filters(rule) {
    const all = ["left", "right"].flatMap((side) => (Array.isArray(rule[`${side}_filters`]) ? rule[`${side}_filters`] : []).map((each) => [side, each || {}]));
    return all.map(([side, { column, op, value }]) => {
      const values = [value ?? []].flat().join(", ");
      return make("p", { class: "hint" }, `Only rows of ${this.names[side]} where ${column} ${FILTERS[op] || op}${values && ` ${values}`} (edit it in the text)`);
    });
  }

  condition(condition, path, total) {
    const op = condition.op || "eq";
    const label = `condition ${path.at(-1) + 1} of rule ${path[1] + 1}`;
    return make("div", { class: "condition", role: "group", "aria-label": label },
      this.input([...path, "left"], `Column of ${this.names.left}`, condition.left, { list: "left-columns", hideLabel: true }),
      this.select([...path, "op"], "Comparison", op, Object.entries(OPS), { hideLabel: true, change: (value) => this.changeOp(condition, path, value) }),
      this.input([...path, "right"], `Column of ${this.names.right}`, condition.right, { list: "right-columns", hideLabel: true }),
      make("span", { class: "condition-more" }, this.options(condition, op, path)),
      make("button", { type: "button", class: "quiet", "aria-label": `Remove ${label}`, title: "Remove", disabled: total === 1, onclick: () => this.edit.remove(path) }, "×"));
  }

  options(condition, op, path) {
    const given = (names) => names.filter(([name], index) => condition[name] !== undefined || index === 0 || (op === "date_window" && condition.days === undefined && index > 0));
    const found = [];
    if (op === "tolerance") {
      const used = AMOUNTS.filter(([name]) => condition[name] !== undefined);
      found.push(...(used.length ? used : AMOUNTS.slice(0, 1)).map(([name, label]) => this.input([...path, name], label, condition[name], { size: 6, inputmode: "decimal" })));
      found.push(this.select([...path, "negate"], "sign", condition.negate || "", [["", "same"], ["left", `${this.names.left} is turned`], ["right", `${this.names.right} is turned`]]));
    }
    if (op === "date_window") {
      const shown = given(DAYS).filter(([name]) => name !== "days" || condition.days !== undefined || (condition.before === undefined && condition.after === undefined));
      const days = condition.days === undefined && (condition.before !== undefined || condition.after !== undefined) ? shown : shown.slice(0, 1);
      found.push(...days.map(([name, label]) => this.input([...path, name], label, condition[name], { size: 4, inputmode: "numeric", read: wholeNumber })));
    }
    if (op === "fuzzy") found.push(this.input([...path, "threshold"], "at least", condition.threshold, { size: 5, inputmode: "decimal" }));
    if (["contains", "startswith", "endswith"].includes(op)) found.push(this.select([...path, "container"], "the longer text is", condition.container || "left", [["left", this.names.left], ["right", this.names.right]]));
    if (op === "eq" || op === "ne") found.push(...this.prepared(condition, path));
    return found;
  }

  /** What is done to both values first; a pattern is shown, and edited where it is. */
  prepared(condition, path) {
    const own = ["derive_left", "derive_right"].filter((name) => condition[name]?.length);
    const both = condition.derive || [];
    const simple = both.every((each) => typeof each === "string");
    const choices = [...PREPARED];
    const value = both.join(",");
    if (simple && !choices.some(([known]) => known === value)) choices.push([value, both.join(", ")]);
    return [
      simple && !own.length && this.select([...path, "derive"], "compared", value, choices, { read: (text) => (text ? text.split(",") : "") }),
      !simple && make("span", { class: "hint" }, `compared: ${wordsOf(both)}`),
      ...own.map((name) => this.patternOr([...path, name], this.names[name === "derive_left" ? "left" : "right"], condition[name])),
    ];
  }

  patternOr(path, side, steps) {
    const at = steps.findIndex((each) => each?.regex !== undefined);
    if (at < 0) return make("span", { class: "hint" }, `${side}: ${wordsOf(steps)}`);
    return this.input([...path, at, "regex"], `pattern in ${side}`, steps[at].regex, { size: 18 });
  }

  changeOp(condition, path, op) {
    const kept = { left: condition.left, op, right: condition.right };
    const starts = { tolerance: { absolute: "0.01" }, date_window: { days: 3 }, fuzzy: { threshold: "0.9" } };
    this.edit.set(path, { ...kept, ...(starts[op] || {}) });
  }

  addRule() {
    const [first] = this.recipe.rules;
    const key = first?.conditions?.[0] || { left: "", right: "" };
    this.edit.add(["rules"], { name: `Rule ${this.recipe.rules.length + 1}`, conditions: [{ left: key.left, op: "eq", right: key.right }] }, false);
  }

  input(path, label, value, { list, size, title, inputmode, hideLabel, read = (text) => text } = {}) {
    return field(label, hideLabel, make("input", {
      value: value === undefined || value === null ? "" : String(value), "data-path": spelled(path), list, size, title, inputmode, autocomplete: "off", spellcheck: "false",
      oninput: (event) => this.edit.set(path, read(event.target.value)),
    }));
  }

  select(path, label, value, choices, { hideLabel, change, read = (text) => text } = {}) {
    return field(label, hideLabel, make("select", { "data-path": spelled(path), onchange: (event) => (change || ((chosen) => this.edit.set(path, read(chosen))))(event.target.value) },
      choices.map(([known, words]) => make("option", { value: known, selected: known === value }, words))));
  }
}

function field(label, hidden, control) {
  return make("label", { class: "field" }, make("span", { class: hidden ? "unseen" : "field-label" }, label), control);
}

function wholeNumber(text) {
  return /^\d+$/.test(text) ? Number(text) : text;
}

function wordsOf(steps) {
  return steps.map((each) => (typeof each === "string" ? each : Object.entries(each).map(([name, value]) => `${name} ${value}`).join(" "))).join(", ");
}
