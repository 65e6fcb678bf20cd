// One of two sides of a reconciliation: a file that is sent, or a source. `status` says whether it may be used.
import { ask, refusal, say } from "./api.js";
import { button, make } from "./elements.js";
import { KeptFiles } from "./kept_files.js";
import { profileTable, rowsTable } from "./source_facts.js";

export class FileSide {
  /** `changed()` is called whenever another file is chosen, is ready or is refused; `kept(old, fresh)` with the
   * addresses of a file that is a source now; `remarks(side, preview)` are how a file is written otherwise than the recipe says. */
  constructor(section, changed, { kept = () => {}, remarks = () => [] } = {}) {
    this.name = section.dataset.side;
    this.status = "none"; // then busy, and at last ready or refused
    this.chosen = null; // {uri, name, upload}
    this.turn = 0; // an answer about an earlier file is ignored
    this.largest = Number(section.parentElement.dataset.largest);
    this.input = section.querySelector("input[type=file]");
    this.select = section.querySelector("select");
    this.state = section.querySelector(".state");
    this.bar = section.querySelector("progress");
    this.found = section.querySelector(".found");
    this.more = make("div", { class: "more" });
    this.state.after(this.more);
    this.changed = changed;
    this.kept = kept;
    this.remarks = remarks;
    this.listen(section);
    // A file that was chosen before this script was there.
    if (this.input.files.length) this.send(this.input.files[0]);
  }

  listen(section) {
    // Else the same file could not be chosen again after a refusal.
    this.input.addEventListener("click", () => { this.input.value = ""; });
    this.input.addEventListener("change", () => this.input.files.length && this.send(this.input.files[0]));
    this.select?.addEventListener("change", () => this.select.value && this.choose({ uri: `source://${this.select.value}`, name: this.select.value }));
    for (const name of ["dragenter", "dragover"]) section.addEventListener(name, () => { section.dataset.over = ""; });
    for (const name of ["dragleave", "drop"]) section.addEventListener(name, () => delete section.dataset.over);
    section.addEventListener("drop", (event) => {
      const files = [...event.dataTransfer.files];
      if (this.input.disabled) return;
      if (files.length === 1) this.send(files[0]);
      else if (files.length > 1) say(this.state, "Drop one file at a time.", true);
    });
  }

  send(file) {
    const mine = this.begin(`Sending ${file.name}…`);
    if (this.select) this.select.value = "";
    if (file.size > this.largest) {
      this.refuse(`${file.name} has ${file.size.toLocaleString()} bytes: at most ${this.largest.toLocaleString()} can be uploaded.`);
      return;
    }
    const request = new XMLHttpRequest(); // fetch reports no progress of an upload
    this.request = request;
    request.open("POST", `/api/uploads?${new URLSearchParams({ name: file.name })}`);
    request.setRequestHeader("Accept", "application/json");
    request.upload.addEventListener("progress", (event) => { if (event.lengthComputable) this.bar.value = event.loaded / event.total; });
    const again = () => this.send(file);
    request.addEventListener("load", () => {
      if (mine !== this.turn) return;
      let answer = {};
      try { answer = JSON.parse(request.responseText); } catch { /* its status says enough */ }
      if (request.status === 201) this.choose({ uri: answer.uri, name: file.name, upload: answer.upload_id });
      else this.refuse(refusal(request.status, answer).message, again);
    });
    request.addEventListener("error", () => mine === this.turn && this.refuse(`${file.name} was not sent: the server does not answer.`, again));
    this.bar.hidden = false;
    this.bar.value = 0;
    request.send(file);
  }

  async choose(chosen) {
    const mine = this.begin(`Looking at ${chosen.name}…`);
    const source = `/api/sources/${encodeURIComponent(chosen.uri.replace("source://", ""))}`;
    try {
      const shown = await ask("GET", `${chosen.upload ? `/api/uploads/${chosen.upload}` : source}/preview?rows=8`);
      if (mine !== this.turn) return;
      this.found.replaceChildren(rowsTable(shown.preview || shown));
      const profile = await ask("GET", `${source}/profile`);
      if (mine !== this.turn) return;
      this.found.append(...profileTable(profile));
      const remarks = this.remarks(this.name, shown);
      if (remarks.length) this.found.prepend(make("div", { class: "note" }, "A run follows the recipe, and this file is written otherwise:", make("ul", {}, remarks.map((each) => make("li", {}, each)))));
      say(this.state, `${chosen.name}: ${profile.rows.toLocaleString()} rows, ${profile.columns.length} columns`);
      this.chosen = chosen;
      this.offer(chosen);
      this.end("ready");
    } catch (error) {
      if (mine === this.turn) this.refuse(error.message, () => this.choose(chosen));
    }
  }

  begin(words, status = "busy") {
    this.request?.abort();
    this.turn += 1;
    this.chosen = null;
    this.bar.hidden = true;
    this.found.replaceChildren();
    this.more.replaceChildren();
    say(this.state, words);
    this.end(status);
    return this.turn;
  }

  refuse(message, again) {
    this.bar.hidden = true;
    say(this.state, message, true);
    this.more.replaceChildren(...(again ? [button("Try again", again)] : []), this.without());
    this.end("refused");
  }

  offer({ uri, upload, name }) {
    const keep = () => {
      const files = new KeptFiles([{ upload_id: upload, file_name: name }], (_, fresh) => {
        this.more.replaceChildren(make("p", { class: "hint" }, "Kept as ", make("a", { href: `/sources/${fresh.replace("source://", "")}` }, fresh)), this.without());
        this.kept(uri, fresh);
      });
      this.more.replaceChildren(files.element, button("Keep", () => files.keepAll(), { class: "strong" }), button("Cancel", () => this.offer({ uri, upload, name })));
      files.element.querySelector("input").focus();
    };
    this.more.replaceChildren(...(upload ? [button("Keep as a source…", keep)] : []), this.without());
  }

  without() {
    return button("Clear", () => {
      this.input.value = "";
      if (this.select) this.select.value = "";
      this.begin("", "none");
    }, { class: "quiet" });
  }

  end(status) {
    this.status = status;
    this.changed();
  }
}
