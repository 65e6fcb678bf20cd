// The editors of a pipeline's page: state, configuration, mapping, filters, dead letters.
"use strict";

/* ---- requests to the API ---- */

async function ask(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: { Accept: "application/json", "Content-Type": "application/json", "Idempotency-Key": key() },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Error("The server does not answer: nothing may have happened.");
  }
  const found = await answer.json().catch(() => ({}));
  if (answer.ok) return found;
  const details = (found.problems || found.errors || []).map((each) => `${each.field}: ${each.message}`);
  throw new Error(details.join("; ") || found.detail || found.title || `The server answered ${answer.status}.`);
}

/* A sentence in the corner about something that went well. */
function done(text) {
  notice(text);
  document.getElementById("notices").lastElementChild.classList.add("good");
}

async function attempt(button, act) {
  button.disabled = true;
  try {
    await act();
  } catch (error) {
    notice(error.message);
  } finally {
    button.disabled = false;
  }
}

function element(name, text, properties = {}) {
  const made = Object.assign(document.createElement(name), properties);
  if (text !== undefined && text !== null) made.textContent = text;
  return made;
}

function tableOf(heads, rows) {
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const each of heads) head.append(element("th", each, { scope: "col" }));
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const cell of row) {
      if (cell instanceof Node) line.insertCell().append(cell);
      else line.insertCell().textContent = cell;
    }
  }
  return table;
}

function shownValue(value) {
  if (value === null || value === undefined) return "null";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/* ---- forms that send JSON ---- */

async function sendForm(form) {
  const [method, path] = form.dataset.json.split(" ");
  let body;
  if (form.dataset.document) {
    try {
      body = JSON.parse(form.elements[form.dataset.document].value);
    } catch (error) {
      throw new Error(`This is not JSON: ${error.message}`);
    }
  } else if (method !== "POST") {
    body = {};
    for (const field of form.elements) {
      if (field.name && !field.disabled) body[field.name] = "number" in field.dataset ? Number(field.value) : field.value;
    }
  }
  await ask(method, path, body);
  if (form.dataset.done) done(form.dataset.done);
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("[data-json]")) return;
  event.preventDefault();
  attempt(form.querySelector("button"), () => sendForm(form));
});

/* ---- results of samples ---- */

function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

async function preview(path, body) {
  const place = document.getElementById("preview");
  place.replaceChildren(element("div", "Reading messages…", { className: "empty" }));
  try {
    const found = await ask("POST", path, body);
    place.replaceChildren();
    showPreview(found, place);
  } catch (error) {
    place.replaceChildren();
    throw error;
  }
}

function showPreview(found, place) {
  const counts = `${counted(found.samples, "sample")}: ${counted(found.row_count, "row")}, ` +
    `${found.refusal_count} refused, ${found.filtered_count} left out by filters, ${found.skipped} skipped.`;
  place.append(element("h3", counts));
  if (found.refusals.length) {
    place.append(element("h3", "Refused", { className: "refused" }));
    place.append(tableOf(["Partition", "Offset", "Field", "Reason", "Message"], found.refusals.map((each) => [
      each.sample.partition, each.sample.offset, each.field, each.reason, (each.sample.text || "").slice(0, 200),
    ])));
  }
  if (found.filtered.length) {
    place.append(element("h3", "Left out"));
    place.append(tableOf(["Partition", "Offset", "Message"], found.filtered.map((each) => [
      each.partition, each.offset, (each.text || "").slice(0, 200),
    ])));
  }
  if (found.rows.length) {
    place.append(element("h3", "Rows"));
    const names = Object.keys(found.rows[0].values);
    place.append(tableOf(["Offset", ...names], found.rows.map((each) => [
      `${each.partition}/${each.offset}`, ...names.map((name) => shownValue(each.values[name])),
    ])));
  }
}

/* ---- the mapping ---- */

const ORIGINS = ["path", "kafka", "header", "constant"];

function mappingRow(column, facts) {
  const row = element("tr");
  const input = (name, value, label) => element("input", undefined, { name, value, ariaLabel: label });
  const choose = (name, options, chosen, label) => {
    const select = element("select", undefined, { name, ariaLabel: label });
    for (const each of options) select.append(element("option", each, { value: each, selected: each === chosen }));
    return select;
  };
  const origin = ORIGINS.find((each) => each in column) || "path";
  const value = origin === "constant" ? JSON.stringify(column.constant) : column[origin] || "";
  const cells = [
    input("column", column.column || "", "column"),
    input("type", column.type || "String", "type"),
    choose("origin", ORIGINS, origin, "where it comes from"),
    input("value", value, "field or value"),
    input("default", "default" in column ? JSON.stringify(column.default) : "", "default, as JSON"),
    choose("unit", ["", "s", "ms", "us"], column.unit || "", "unit of an epoch number"),
  ];
  for (const each of cells) row.insertCell().append(each);
  const seen = row.insertCell();
  seen.className = "facts";
  if (facts) {
    const types = Object.entries(facts.types).map(([kind, count]) => `${kind} ${count}`).join(", ");
    seen.append(element("span", `${Math.round(facts.presence * 100)} % present, ${facts.nulls} null; ${types}`));
    if (facts.conflict) seen.append(element("div", facts.conflict, { className: "conflict" }));
  }
  const remove = element("button", "Remove", { className: "quiet", type: "button" });
  remove.addEventListener("click", () => row.remove());
  row.insertCell().append(remove);
  return row;
}

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${what}: ${text} is not JSON (write a text as "like this")`);
  }
}

function readMapping() {
  return [...document.querySelectorAll("#mapping-rows tr")].map((row) => {
    const field = (name) => row.querySelector(`[name=${name}]`).value.trim();
    const column = { column: field("column"), type: field("type") };
    const origin = field("origin");
    column[origin] = origin === "constant" ? parsed(field("value"), column.column) : field("value");
    if (field("default") !== "") column.default = parsed(field("default"), column.column);
    if (field("unit")) column.unit = field("unit");
    return column;
  });
}

function beginMapping(panel) {
  const base = `/api/pipelines/${panel.dataset.mapping}`;
  const rows = document.getElementById("mapping-rows");
  const note = document.getElementById("mapping-note");
  const put = (mapping, facts = {}) => rows.replaceChildren(
    ...mapping.map((each) => mappingRow(each, facts[each.path])),
  );
  put(JSON.parse(document.getElementById("mapping-data").textContent));
  const acts = {
    add: async () => rows.append(mappingRow({})),
    preview: () => preview(`${base}/mapping/preview`, { mapping: readMapping() }),
    save: async () => {
      const saved = await ask("PUT", `${base}/mapping`, { mapping: readMapping() });
      document.getElementById("mapping-title").textContent = `Mapping, version ${saved.version}`;
      note.textContent = `Saved as version ${saved.version}.`;
      document.getElementById("create-tables").replaceChildren(...saved.create_tables.map((each) => element("pre", each)));
    },
    infer: async () => {
      note.textContent = "Reading samples…";
      const found = await ask("POST", `${base}/infer`).catch((error) => {
        note.textContent = "";
        throw error;
      });
      put(found.mapping, Object.fromEntries(found.fields.map((each) => [each.path, each])));
      note.textContent = `Proposed from ${counted(found.samples, "sample")}; not JSON objects: ${found.unreadable}. Nothing is saved yet.`;
      document.getElementById("create-tables").replaceChildren(...found.create_tables.map((each) => element("pre", each)));
    },
  };
  listen(panel, acts);
}

function listen(panel, acts) {
  panel.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-act]");
    if (button) attempt(button, acts[button.dataset.act]);
  });
}

/* ---- filters ---- */

function beginFilters(panel) {
  const base = `/api/pipelines/${panel.dataset.filters}`;
  const lines = (id) => document.getElementById(id).value.split("\n").map((each) => each.trim()).filter(Boolean);
  listen(panel, {
    test: async () => {
      const body = { filters: lines("filters") };
      const given = lines("messages").map((each) => parsed(each, "message"));
      if (given.length) body.messages = given;
      await preview(`${base}/filters/test`, body);
    },
    save: async () => {
      const saved = await ask("PUT", `${base}/filters`, { filters: lines("filters") });
      document.getElementById("filters-note").textContent = `Saved as version ${saved.version} of the rules.`;
    },
  });
}

/* ---- dead letters ---- */

function beginLetters(panel) {
  const base = `/api/pipelines/${panel.dataset.letters}`;
  const mayChange = "mayChange" in panel.dataset;
  let chosen = null;
  const show = (letter) => {
    chosen = letter;
    document.getElementById("letter-text").textContent =
      `${letter.topic}/${letter.partition} ${letter.offset}\n${letter.field || "the message"}: ${letter.reason}\n\n${letter.text}`;
  };
  const load = async () => {
    const found = await ask("GET", `${base}/dead-letters?limit=50`);
    const groups = document.getElementById("letter-groups");
    groups.replaceChildren(found.groups.length
      ? tableOf(["Count", "Field", "Reason", ""], found.groups.map((each) => [
        each.count, each.field, each.reason, mayChange ? replayButton(each) : "",
      ]))
      : element("div", "There are no dead letters.", { className: "empty" }));
    const list = document.getElementById("letters");
    list.replaceChildren(tableOf(["Partition", "Offset", "Field", "Reason", "Message", ""], found.letters.map((each) => {
      const button = element("button", "Show", { className: "quiet" });
      button.addEventListener("click", () => {
        show(each);
        document.getElementById("letter-title").scrollIntoView({ behavior: "smooth" });
      });
      return [each.partition, each.offset, each.field, each.reason, each.text.slice(0, 120), button];
    })));
    if (found.letters.length) show(found.letters[0]);
  };
  const replay = async (group) => {
    const made = await ask("POST", `${base}/dead-letters/replay`, group);
    document.getElementById("letters-note").textContent = `Replay ${made.replay} began.`;
  };
  const replayButton = ({ reason, field }) => {
    const button = element("button", "Replay these", { className: "quiet" });
    button.addEventListener("click", () => attempt(button, () => replay({ reason, field })));
    return button;
  };
  const acts = {
    replay: () => replay({}),
    test: async () => {
      if (!chosen) throw new Error("Choose a letter first.");
      const mapping = parsed(document.getElementById("letter-mapping").value, "the mapping");
      await preview(`${base}/dead-letters/test`, { mapping, partition: chosen.partition, offset: chosen.offset });
    },
  };
  listen(document.getElementById("main"), acts);
  load().catch((error) => {
    document.getElementById("letter-groups").replaceChildren(element("div", error.message, { className: "empty" }));
  });
}

/* ---- the tables' windows ---- */

async function beginTables(place) {
  const windowOf = (each) => each.engine === null
    ? `${each.table} does not exist, or its user may not see it`
    : `${each.table} remembers the tokens of its last ${each.window.toLocaleString("en")} inserts`;
  try {
    const found = await ask("GET", `/api/pipelines/${place.dataset.tables}/tables`);
    place.textContent = `${found.map(windowOf).join("; ")}.`;
  } catch (error) {
    place.textContent = error.message;
  }
}

const parts = { mapping: beginMapping, filters: beginFilters, letters: beginLetters, tables: beginTables };
for (const [name, begin] of Object.entries(parts)) {
  const panel = document.querySelector(`[data-${name}]`);
  if (panel) begin(panel);
}
