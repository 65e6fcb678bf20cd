// Uploads that become sources: a name for each, and a button or two elsewhere.
import { ask, say } from "./api.js";
import { make } from "./elements.js";

const NAME = "[A-Za-z0-9][A-Za-z0-9_.\\-]*";

export class KeptFiles {
  /** `kept(upload, uri)` is called for each file that is a source now. */
  constructor(uploads, kept) {
    this.kept = kept;
    this.state = make("span", { class: "state", role: "status" });
    this.fields = uploads.map((upload) => ({ upload, input: make("input", { value: nameFor(upload.file_name), maxlength: 100, pattern: NAME, required: true, autocomplete: "off" }) }));
    this.element = make("div", { class: "kept-files" },
      this.fields.map(({ upload, input }) => make("label", { class: "field" }, make("span", { class: "field-label" }, `${upload.file_name} as`), input)),
      this.state);
  }

  /** Whether all of them are sources now; what is one stays one. */
  async keepAll() {
    for (const { upload, input } of this.fields.filter((each) => !each.input.disabled)) {
      if (!input.reportValidity()) return false;
      try {
        await ask("POST", `/api/uploads/${upload.upload_id}/save`, { name: input.value });
      } catch (error) {
        say(this.state, error.message, true);
        input.focus();
        return false;
      }
      input.disabled = true;
      this.kept(upload, `source://${input.value}`);
    }
    say(this.state, "");
    return true;
  }
}

function nameFor(fileName) {
  return fileName.split(".")[0].replace(/[^A-Za-z0-9_.-]+/g, "-").replace(/^[^A-Za-z0-9]+|-+$/g, "");
}
