// The editor of a recipe: a form and YAML side by side. The text is the only state: the form edits it through its
// tree and is drawn from it, so the two cannot differ. Every edit is tried on a sample.
import { ask, percent, say } from "../api.js";
import { button, make } from "../elements.js";
import { KeptFiles } from "../kept_files.js";
import * as tree from "./document.js";
import { drawForm, drawReason, markFields, reasonForNone } from "./form.js";
import { sideNames } from "./names.js";
import { textEditor } from "./text.js";
import { drawTrial } from "./trial.js";

const TRIAL_AFTER_MS = 300; // after the last key
const BUSY_MS = 1000; // until the server is asked again when it has too much to do

export class RecipeEditor {
  /** `draft` keeps what is typed: `read()`, and `keep(text)`, with null for nothing that is unsaved. */
  constructor(element, draft) {
    const find = (id) => element.querySelector(`#${id}`);
    this.element = element;
    this.draft = draft;
    this.form = find("recipe-form");
    this.trial = find("trial");
    this.state = find("editor-state");
    this.question = find("editor-question");
    this.problems = find("recipe-problems");
    this.discard = find("discard");
    this.columns = { left: [], right: [] };
    this.known = {};
    this.fileNames = {}; // of files that were sent, by uri
    const saved = find("saved-text").content.textContent;
    this.saved = saved;
    const { recipe, version } = element.dataset;
    this.version = recipe ? { recipe_id: recipe, version: Number(version) } : null; // of the text as it was saved
    this.text = textEditor(find("recipe-text"), saved, (byForm) => this.edited(byForm));
    element.addEventListener("submit", (event) => event.preventDefault());
    find("save")?.addEventListener("click", () => this.save());
    find("run")?.addEventListener("click", () => this.run());
    this.discard.addEventListener("click", () => this.load(this.saved, { version: this.version }));
    if (saved) this.begin();
  }

  get isEdited() {
    return this.text.text !== this.saved;
  }

  begin() {
    const draft = this.draft.read();
    if (draft && draft !== this.saved) {
      this.isRestored = true;
      this.text.replace(draft);
    } else this.edited(false);
  }

  /** Another recipe in place of the one shown, with the trial it has had and, if it was edited, with its edits. */
  load(saved, { trial = null, version = null, text = saved } = {}) {
    this.asking?.abort();
    this.saved = saved;
    this.version = version;
    this.last = null;
    this.tried = null;
    this.pose(null);
    this.text.replace(text);
    this.edited(false);
    if (trial && text === saved) {
      clearTimeout(this.timer);
      this.showProblems([]);
      this.take(text, trial);
    }
  }

  edited(byForm) {
    this.showUnsaved();
    if (!byForm) this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.attempt(), TRIAL_AFTER_MS);
  }

  showUnsaved() {
    this.discard.hidden = !this.isEdited;
    this.draft.keep(this.isEdited ? this.text.text : null);
  }

  /* ---- form and text in step ---- */

  draw() {
    const found = tree.read(this.text.text);
    if (!found) {
      const [first] = tree.errorsOf(this.text.text);
      drawReason(this.form, `The form is back when the text can be read again${first ? `: ${first.message}` : "."}`);
      return;
    }
    const recipe = found.toJS();
    const reason = reasonForNone(recipe);
    if (reason) {
      drawReason(this.form, reason);
      return;
    }
    drawForm(this.form, recipe, this, this.edits());
    this.lookForColumns(recipe);
  }

  edits() {
    const change = (work, redraw) => {
      const found = tree.read(this.text.text);
      if (!found) return;
      work(found);
      this.text.replace(tree.write(found), true);
      if (redraw) this.draw();
    };
    return {
      set: (path, value) => change((found) => tree.set(found, path, value), typeof value === "object" && !Array.isArray(value)),
      add: (path, value, flow) => change((found) => tree.add(found, path, value, flow), true),
      remove: (path) => change((found) => tree.remove(found, path), true),
      move: (path, by) => change((found) => tree.move(found, path, by), true),
    };
  }

  /** The names of a source's columns, for the form to offer. */
  lookForColumns(recipe) {
    for (const side of ["left", "right"]) {
      const uri = String(recipe.sources?.[side]?.uri || "");
      if (this.known[side] === uri || !uri.startsWith("source://")) continue;
      this.known[side] = uri;
      const name = encodeURIComponent(uri.slice("source://".length));
      const upload = name.startsWith("upload-") && name.slice("upload-".length);
      // Of a file that was sent it is found how it is written; a source says so.
      ask("GET", upload ? `/api/uploads/${upload}/preview?rows=1` : `/api/sources/${name}/preview?rows=1`).then((found) => {
        this.columns[side] = (found.preview || found).columns;
        if (found.upload) this.fileNames[uri] = found.upload.file_name;
        if (!this.form.contains(document.activeElement)) this.draw();
        else this.form.querySelector(`#${side}-columns`)?.replaceChildren(...this.columns[side].map((each) => make("option", { value: each })));
      }).catch(() => {}); // the trial tells what is wrong with a source
    }
  }

  /* ---- the trial ---- */

  async attempt() {
    const text = this.text.text;
    this.asking?.abort();
    if (!text.trim() || this.element.dataset.mayTry !== "true") return;
    if (text === this.tried) { // what was wrong since is mended
      this.showProblems([]);
      this.sayMatched();
      return;
    }
    const asking = new AbortController();
    this.asking = asking;
    const errors = tree.errorsOf(text);
    if (errors.length) {
      this.showProblems([], errors);
      say(this.state, "The YAML cannot be read.", true);
      return;
    }
    say(this.state, "Trying…");
    try {
      const verdict = await ask("POST", "/api/recipes/validate", { recipe: text }, asking.signal);
      this.showProblems(verdict.problems);
      if (!verdict.valid) {
        say(this.state, `${verdict.problems.length} ${verdict.problems.length === 1 ? "problem" : "problems"}`, true);
        return;
      }
      const body = { recipe: text, ...(this.tried ? { before: this.tried } : {}) };
      this.take(text, await ask("POST", "/api/recipes/try", body, asking.signal));
    } catch (error) {
      if (asking.signal.aborted) return;
      this.refused(error);
      if (error.status === 503) this.timer = setTimeout(() => this.attempt(), BUSY_MS);
    }
  }

  take(text, trial) {
    drawTrial(this.trial, trial, this.last, this.sideNames());
    this.last = trial;
    this.tried = text;
    this.sayMatched();
  }

  sayMatched() {
    say(this.state, `${percent(this.last.match_rate)} matched${this.isRestored ? "; what you typed last time is here again" : ""}`);
  }

  /** What the two sides are called: as their sources are, or left and right while the text cannot be read. */
  sideNames() {
    return sideNames(tree.read(this.text.text)?.toJS().sources, this.fileNames);
  }

  refused(error) {
    this.showProblems((error.problems || []).map((each) => ({ path: each.field, message: each.message })));
    say(this.state, error.message, true);
  }

  showProblems(problems, errors = []) {
    const found = tree.read(this.text.text);
    const placed = problems.map((each) => {
      const [from, to] = found && each.path ? tree.placeOf(found, tree.pathOf(each.path)) : [0, 0];
      return { from, to, message: each.message };
    });
    this.text.mark([...placed, ...errors]);
    const listed = [...markFields(this.form, problems), ...errors];
    this.problems.replaceChildren(...listed.map((each) =>
      make("li", {}, each.path ? make("code", {}, each.path) : null, ` ${each.message}${each.suggestion ? ` (${each.suggestion})` : ""}`)));
    this.element.toggleAttribute("data-invalid", problems.length + errors.length > 0);
  }

  /* ---- what is kept ---- */

  async save() {
    const temporary = await this.act("Saving…", () => this.temporaryFiles());
    if (temporary?.length) this.askToKeep(temporary);
    else if (temporary) await this.saveText();
  }

  async saveText() {
    await this.act("Saving…", async (text) => {
      const saved = await ask("POST", "/api/recipes", { recipe: text });
      this.kept(text, { recipe_id: saved.recipe_id, version: saved.version });
      const address = `/recipes/${encodeURIComponent(saved.recipe_id)}`;
      if (location.pathname.startsWith("/recipes/")) location.assign(address);
      say(this.state, "Saved as ");
      this.state.append(make("a", { href: address }, `version ${saved.version} of ${saved.recipe_id}`));
    });
  }

  async run(more = {}) {
    await this.act("Starting…", async (text) => {
      // What is saved already is run as it is: sent as a text it would become the recipe's newest version.
      const isSaved = this.version && text === this.saved;
      let started;
      try {
        started = await ask("POST", "/api/runs", isSaved ? this.version : { recipe: text, ...more });
      } catch (error) {
        if (error.status !== 409 || more.new_version) throw error;
        say(this.state, "");
        this.pose(error.message, null, { "Run it as the new version": () => this.run({ new_version: true }) }); // a schedule would run it
        return;
      }
      this.kept(text, isSaved ? this.version : null);
      location.assign(`/runs/${started.run_id}`);
      say(this.state, `Run ${started.run_id} has started.`);
    });
  }

  kept(text, version) {
    this.saved = text;
    this.version = version;
    this.pose(null);
    this.showUnsaved();
  }

  /** The uploads that the recipe reads and that are removed some day. */
  async temporaryFiles() {
    const sources = Object.values(tree.read(this.text.text)?.toJS().sources || {});
    const uris = sources.map((source) => String(source?.uri || "")).filter((uri) => uri.startsWith("source://upload-"));
    if (!uris.length) return [];
    return (await ask("GET", "/api/uploads")).filter((each) => uris.includes(each.uri) && each.expires_at);
  }

  askToKeep(uploads) {
    const files = new KeptFiles(uploads, (upload, uri) => this.readInstead(upload.uri, uri));
    const until = new Date(Math.min(...uploads.map((each) => Date.parse(each.expires_at)))).toLocaleDateString();
    say(this.state, "");
    this.pose(`This recipe reads files that are removed on ${until}. Keep them as sources, so that it can be run after that.`, files.element, {
      "Keep and save": async () => { if (await files.keepAll()) await this.saveText(); },
      "Save without keeping them": () => this.saveText(),
    });
  }

  /** Another source in place of one, with all else as it was. */
  readInstead(uri, fresh) {
    const sources = tree.read(this.text.text)?.toJS().sources || {};
    for (const side of ["left", "right"]) if (sources[side]?.uri === uri) this.edits().set(["sources", side, "uri"], fresh);
    this.draw();
  }

  /** A question with its answers as buttons; null takes it away. */
  pose(words, details = null, answers = {}) {
    this.question.hidden = words === null;
    if (words === null) return;
    this.question.replaceChildren(
      make("p", {}, words), ...[details].filter(Boolean),
      make("p", { class: "answers" },
        Object.entries(answers).map(([label, work], index) => button(label, work, { class: index ? null : "strong" })),
        button("Cancel", () => this.pose(null), { class: "quiet" })));
    this.question.querySelector("input, button").focus();
  }

  async act(words, work) {
    const buttons = this.element.querySelectorAll(".headline-end button");
    say(this.state, words);
    buttons.forEach((each) => { each.disabled = true; });
    try {
      return await work(this.text.text);
    } catch (error) {
      this.refused(error);
      return undefined;
    } finally {
      buttons.forEach((each) => { each.disabled = false; });
    }
  }
}
