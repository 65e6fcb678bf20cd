// From two files to a proposal. The files and the recipe are kept in the browser until others take their place.
import { ask, percent, say, sentence } from "./api.js";
import { button, make } from "./elements.js";
import { FileSide } from "./file_side.js";

const KEY = "kalla-start";

export class Start {
  constructor(main) {
    this.proposal = main.querySelector("#proposal");
    this.state = main.querySelector("#proposal-state");
    this.facts = main.querySelector("#proposal-facts");
    this.earlier = main.querySelector("#earlier");
    this.main = main;
    this.shown = null; // {pair, left, right, found}: the proposal in the editor and what it was made of
  }

  /** What is typed into the editor is kept with the files. */
  get draft() {
    return { read: () => null, keep: () => this.remember() };
  }

  begin(editor) {
    this.editor = editor;
    this.sides = [...this.main.querySelectorAll(".side")].map((section) => new FileSide(section, () => this.changed(), { kept: (old, fresh) => this.renamed(old, fresh) }));
    this.offer(JSON.parse(sessionStorage.getItem(KEY)));
  }

  /* ---- after another file was chosen ---- */

  changed() {
    if (!this.sides) return; // one of them is being made
    this.asking?.abort();
    const [left, right] = this.sides.map((side) => side.chosen);
    const isEdited = this.shown && this.editor.isEdited;
    if (left && right) {
      const pair = `${left.uri} ${right.uri}`;
      if (this.shown?.pair === pair) {
        this.proposal.hidden = false;
        this.sayShare();
      } else this.propose(pair, left, right);
    } else if (isEdited) say(this.state, `Your recipe still reads ${this.shown.left.name} and ${this.shown.right.name}.`);
    else this.proposal.hidden = true; // Run would start the files of before
  }

  async propose(pair, left, right) {
    const asking = new AbortController();
    this.asking = asking;
    this.proposal.hidden = false;
    this.editor.element.hidden = !this.shown || !this.editor.isEdited;
    if (this.editor.element.hidden) this.facts.replaceChildren();
    say(this.state, "Comparing the values of both sources…");
    try {
      const found = await ask("POST", "/api/recipes/propose", { left: left.uri, right: right.uri }, asking.signal);
      const show = () => this.show({ pair, left, right, found });
      if (this.editor.element.hidden) {
        show();
        this.proposal.scrollIntoView({ block: "start" });
        return;
      }
      say(this.state, `There is a proposal for ${left.name} and ${right.name}. Your own recipe still reads ${this.shown.left.name} and ${this.shown.right.name}. `);
      this.state.append(button("Use the proposal", show));
    } catch (error) {
      if (asking.signal.aborted) return;
      say(this.state, `${error.message} `, true);
      this.state.append(button("Try again", () => this.changed()));
    }
  }

  show(shown, text = shown.found.text) {
    const { left, right, found } = shown;
    this.shown = shown;
    for (const each of [left, right]) this.editor.fileNames[each.uri] = each.name;
    this.sayShare();
    this.facts.replaceChildren(make("section", { class: "panel", "aria-label": "Evidence" },
      make("ul", { class: "lines" }, found.evidence.map((each) => make("li", {}, `${sentence(each)}.`))),
      found.unsure.length ? make("ul", { class: "lines" }, found.unsure.map((each) => make("li", {}, `Not sure: ${each}.`))) : null));
    this.proposal.hidden = false;
    this.editor.element.hidden = false;
    this.editor.load(found.text, { trial: found.trial, text });
    this.remember();
  }

  sayShare() {
    say(this.state, `${percent(this.shown.found.trial.match_rate)} of the rows match in a trial.`);
  }

  /** A file is a source now: the recipe names it so. */
  renamed(old, fresh) {
    if (!this.shown) return;
    this.editor.readInstead(old, fresh);
    this.remember();
  }

  /* ---- a page that is opened again ---- */

  remember() {
    if (!this.shown) return;
    const kept = { at: Date.now(), shown: this.shown, text: this.editor.text.text };
    sessionStorage.setItem(KEY, JSON.stringify(kept));
  }

  offer(kept) {
    this.earlier.hidden = !kept;
    if (!kept) return;
    const { left, right } = kept.shown;
    const time = new Date(kept.at).toLocaleTimeString(undefined, { timeStyle: "short" });
    const close = (work) => () => {
      this.earlier.hidden = true;
      work();
    };
    this.earlier.replaceChildren(
      make("p", {}, `Your recipe for ${left.name} and ${right.name} is still here, as it was at ${time}.`),
      make("p", { class: "answers" },
        button("Go on", close(() => this.resume(kept)), { class: "strong" }),
        button("Start anew", close(() => sessionStorage.removeItem(KEY)))));
  }

  resume({ shown, text }) {
    this.show(shown, text);
    for (const side of this.sides) side.choose(shown[side.name]);
  }
}
