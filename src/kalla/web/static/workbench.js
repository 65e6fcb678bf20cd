// From two files to a run: uploads, profiles and proposals. Text of files is only ever put on the page as text.
import { ask, percent, refusal, say, sentence } from "./api.js";
import { draw, make } from "./elements.js";
import { RecipeEditor } from "./recipes/editor.js";
import { schedules } from "./recipes/schedules.js";

const main = document.getElementById("main");

/* ---- what was found of a source ---- */

function rowsTable(columns, rows) {
  return make("table", {},
    make("thead", {}, make("tr", {}, columns.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell) => make("td", {}, cell === null ? "" : typeof cell === "object" ? JSON.stringify(cell) : String(cell)))))));
}

function decisionsList(decisions) {
  if (!decisions.length) return null;
  return make("ul", { class: "notes" }, decisions.map((each) =>
    make("li", {}, make("code", {}, `csv.${each.option}: ${JSON.stringify(each.value)}`), ` ${each.is_sure ? "" : "(not sure) "}${each.reason}`)));
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

function profileTable(profile) {
  const heads = ["Column", "Holds", "Empty", "Distinct", "Distribution", "From", "To", "Examples"];
  return [
    make("table", {},
      make("thead", {}, make("tr", {}, heads.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, profile.columns.map((each) => make("tr", {},
        make("th", { scope: "row" }, each.name),
        make("td", {}, each.role),
        make("td", { class: "number" }, String(each.nulls)),
        make("td", { class: "number" }, String(each.distinct)),
        make("td", {}, each.histogram.length ? make("span", { class: "spark" }, spark(each.histogram)) : ""),
        make("td", {}, each.smallest === null ? "" : String(each.smallest)),
        make("td", {}, each.largest === null ? "" : String(each.largest)),
        make("td", {}, each.examples.join(", ")))))),
    make("ul", { class: "notes" },
      make("li", {}, `${profile.rows.toLocaleString()} rows${profile.total ? ` of about ${profile.total.toLocaleString()}: the first were read` : ""}`),
      make("li", {}, `Primary key: ${profile.primary_key.join(", ") || "none found"} (${profile.primary_key_note})`),
      profile.notes.map((note) => make("li", {}, sentence(note)))),
    decisionsList(profile.decisions),
  ].filter(Boolean);
}

/* ---- two files ---- */

const chosen = {};

function side(section) {
  const input = section.querySelector("input[type=file]");
  const select = section.querySelector("select");
  const state = section.querySelector(".state");
  input.addEventListener("change", () => input.files.length && send(section, input.files[0]));
  if (select) select.addEventListener("change", () => select.value && choose(section, `source://${select.value}`, select.value, state));
  for (const name of ["dragenter", "dragover"]) {
    section.addEventListener(name, (event) => {
      event.preventDefault();
      section.dataset.over = "";
    });
  }
  for (const name of ["dragleave", "drop"]) section.addEventListener(name, () => delete section.dataset.over);
  section.addEventListener("drop", (event) => {
    event.preventDefault();
    const files = [...event.dataTransfer.files];
    if (files.length === 1) send(section, files[0]);
    else if (files.length > 1) say(state, "Drop one file at a time.", true);
  });
}

function send(section, file) {
  const state = section.querySelector(".state");
  const bar = section.querySelector("progress");
  const largest = Number(section.parentElement.dataset.largest);
  if (file.size > largest) {
    say(state, `${file.name} has ${file.size.toLocaleString()} bytes: at most ${largest.toLocaleString()} can be uploaded.`, true);
    return;
  }
  const request = new XMLHttpRequest(); // fetch tells no progress of what it sends
  request.open("POST", `/api/uploads?${new URLSearchParams({ name: file.name })}`);
  request.setRequestHeader("Accept", "application/json");
  request.upload.addEventListener("progress", (event) => { if (event.lengthComputable) bar.value = event.loaded / event.total; });
  request.addEventListener("load", () => {
    bar.hidden = true;
    let found = {};
    try { found = JSON.parse(request.responseText); } catch { /* told below by its status */ }
    if (request.status === 201) choose(section, found.uri, file.name, state, found.upload_id);
    else say(state, refusal(request.status, found).message, true);
  });
  request.addEventListener("error", () => {
    bar.hidden = true;
    say(state, `${file.name} was not sent: the server does not answer. Try again.`, true);
  });
  bar.hidden = false;
  bar.value = 0;
  say(state, `Sending ${file.name}…`);
  request.send(file);
}

async function choose(section, uri, name, state, upload) {
  const found = section.querySelector(".found");
  chosen[section.dataset.side] = null;
  say(state, `Looking at ${name}…`);
  found.replaceChildren();
  const source = encodeURIComponent(uri.replace("source://", ""));
  try {
    const [shown, profile] = await Promise.all([
      upload ? ask("GET", `/api/uploads/${upload}/preview?rows=8`) : ask("GET", `/api/sources/${source}/preview?rows=8`),
      ask("GET", `/api/sources/${source}/profile`),
    ]);
    const preview = shown.preview || shown;
    found.replaceChildren(rowsTable(preview.columns, preview.rows), ...profileTable(profile));
    say(state, `${name}: ${profile.rows.toLocaleString()} rows, ${profile.columns.length} columns`);
    chosen[section.dataset.side] = uri;
    if (editor) editor.names[uri] = name;
    if (document.getElementById("proposal") && chosen.left && chosen.right) propose();
  } catch (error) {
    say(state, error.message, true);
  }
}

async function propose() {
  const proposal = document.getElementById("proposal");
  const state = document.getElementById("proposal-state");
  proposal.hidden = false;
  say(state, "Comparing the values of both sources…");
  try {
    const found = await ask("POST", "/api/recipes/propose", { left: chosen.left, right: chosen.right });
    say(state, `${percent(found.trial.match_rate)} of the rows match in a trial.`);
    document.getElementById("proposal-facts").replaceChildren(
      make("section", { class: "panel", "aria-label": "Evidence" },
        make("ul", { class: "lines" }, found.evidence.map((each) => make("li", {}, `${sentence(each)}.`))),
        found.unsure.length ? make("ul", { class: "lines" }, found.unsure.map((each) => make("li", {}, `Not sure: ${each}.`))) : null));
    editor.load(found.text, found.trial);
    proposal.scrollIntoView({ block: "start" });
  } catch (error) {
    say(state, error.message, true);
  }
}

/* ---- other files for a saved recipe ---- */

async function runAgain(element) {
  const state = element.querySelector("#run-again-state");
  const { recipe } = element.dataset;
  if (!chosen.left && !chosen.right) {
    say(state, "Choose another file for at least one side.", true);
    return;
  }
  say(state, "Starting…");
  try {
    const others = Object.fromEntries(Object.entries(chosen).filter(([, uri]) => uri));
    const started = await ask("POST", "/api/runs", { recipe_id: recipe, ...others });
    location.assign(`/runs/${started.run_id}`);
  } catch (error) {
    say(state, [error.message, ...(error.problems || []).map((each) => each.message)].join(" "), true);
  }
}

/* ---- sources ---- */

async function fill(section, path, show) {
  const found = section.querySelector(".found");
  try {
    found.replaceChildren(...[show(await ask("GET", path))].flat());
  } catch (error) {
    found.replaceChildren(make("p", { class: "empty" }, error.message));
  }
}

async function addSource(form) {
  const state = form.querySelector(".state");
  const given = Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));
  const { name, primary_key: keys, ...source } = given;
  if (keys) source.primary_key = keys.split(",").map((each) => each.trim()).filter(Boolean);
  try {
    await ask("POST", "/api/sources", { name, source });
    location.assign(`/sources/${encodeURIComponent(name)}`);
  } catch (error) {
    say(state, error.message, true);
  }
}

/* ---- beginning ---- */

main.querySelectorAll(".side").forEach(side);
const editorElement = document.getElementById("editor");
const editor = editorElement && new RecipeEditor(editorElement);
const again = document.getElementById("run-again");
if (again) again.querySelector("button").addEventListener("click", () => runAgain(again));
const planned = document.getElementById("schedules");
if (planned) schedules(planned);
const profile = document.getElementById("profile");
if (profile) fill(profile, `/api/sources/${profile.dataset.name}/profile`, profileTable);
const preview = document.getElementById("preview");
if (preview) fill(preview, `/api/sources/${preview.dataset.name}/preview?rows=20`, (found) => rowsTable(found.columns, found.rows));
const add = document.getElementById("add-source");
if (add) add.addEventListener("submit", (event) => { event.preventDefault(); addSource(add); });
document.getElementById("test-source")?.addEventListener("click", async () => {
  const state = document.getElementById("test-state");
  say(state, "Testing…");
  try {
    const found = await ask("POST", `/api/sources/${profile.dataset.name}/test`, {});
    say(state, sentence(found.message), !found.reachable);
  } catch (error) {
    say(state, error.message, true);
  }
});
