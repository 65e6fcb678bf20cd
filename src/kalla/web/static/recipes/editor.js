// The editor of a recipe: a form and YAML side by side. The text is the only state: the form edits it through its
// tree and is drawn from it, so the two cannot differ. Every edit is tried on a sample.
import { ask, percent, say } from "../api.js";
import { make } from "../elements.js";
import * as tree from "./document.js";
import { drawForm, drawReason, markFields, reasonForNone } from "./form.js";
import { textEditor } from "./text.js";
import { drawTrial } from "./trial.js";

const TRIAL_AFTER_MS = 300; // after the last key
const BUSY_MS = 1000; // until the server is asked again when it has too much to do

export class RecipeEditor {
  constructor(element) {
    const find = (id) => element.querySelector(`#${id}`);
    this.element = element;
    this.form = find("recipe-form");
    this.trial = find("trial");
    this.state = find("editor-state");
    this.problems = find("recipe-problems");
    this.draftKey = `kalla-draft:${location.pathname}`;
    this.columns = { left: [], right: [] };
    this.known = {};
    this.names = {}; // of files that were sent, by uri
    const saved = element.querySelector("#saved-text").content.textContent;
    this.saved = saved;
    this.text = textEditor(find("recipe-text"), saved, (byForm) => this.edited(byForm));
    element.addEventListener("submit", (event) => event.preventDefault());
    find("save")?.addEventListener("click", () => this.save());
    find("run")?.addEventListener("click", () => this.run());
    find("discard")?.addEventListener("click", () => this.load(this.saved));
    if (saved) this.begin();
  }

  begin() {
    const draft = sessionStorage.getItem(this.draftKey);
    if (draft && draft !== this.saved) {
      this.text.replace(draft);
      say(this.state, "What you typed last time is here again.");
    } else this.edited(false);
  }

  /** Another recipe in place of the one shown, with the trial it has had. */
  load(text, trial = null) {
    this.saved = text;
    this.last = null;
    this.tried = null;
    this.text.replace(text);
    this.draw();
    if (trial) {
      clearTimeout(this.timer);
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
    const differs = this.text.text !== this.saved;
    this.element.querySelector("#discard").hidden = !differs;
    if (differs) sessionStorage.setItem(this.draftKey, this.text.text);
    else sessionStorage.removeItem(this.draftKey);
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
        if (found.upload) this.names[uri] = found.upload.file_name;
        if (!this.form.contains(document.activeElement)) this.draw();
        else this.form.querySelector(`#${side}-columns`)?.replaceChildren(...this.columns[side].map((each) => make("option", { value: each })));
      }).catch(() => {}); // the trial tells what is wrong with a source
    }
  }

  /* ---- the trial ---- */

  async attempt() {
    const text = this.text.text;
    if (!text.trim() || text === this.tried || this.element.dataset.mayTry !== "true") return;
    this.asking?.abort();
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
    drawTrial(this.trial, trial, this.last);
    this.last = trial;
    this.tried = text;
    say(this.state, `${percent(trial.match_rate)} matched`);
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
    await this.act("Saving…", async (text) => {
      const saved = await ask("POST", "/api/recipes", { recipe: text });
      this.kept(text);
      const address = `/recipes/${encodeURIComponent(saved.recipe_id)}`;
      if (location.pathname.startsWith("/recipes/")) location.assign(address);
      return `Saved as version ${saved.version} of ${saved.recipe_id}.`;
    });
  }

  async run() {
    await this.act("Starting…", async (text) => {
      const started = await ask("POST", "/api/runs", { recipe: text });
      this.kept(text);
      location.assign(`/runs/${started.run_id}`);
      return `Run ${started.run_id} has started.`;
    });
  }

  kept(text) {
    this.saved = text;
    sessionStorage.removeItem(this.draftKey);
  }

  async act(words, work) {
    const buttons = this.element.querySelectorAll(".headline-end button");
    say(this.state, words);
    buttons.forEach((button) => { button.disabled = true; });
    try {
      say(this.state, await work(this.text.text));
    } catch (error) {
      this.refused(error);
    } finally {
      buttons.forEach((button) => { button.disabled = false; });
    }
  }
}
