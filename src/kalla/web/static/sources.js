// The pages of sources: what is in one, files that were sent, and a form that adds one.
import { ask, say, sentence } from "./api.js";
import { button, make } from "./elements.js";
import { KeptFiles } from "./kept_files.js";
import { profileTable, rowsTable } from "./source_facts.js";

export async function fill(section, path, show) {
  const found = section.querySelector(".found");
  try {
    found.replaceChildren(...[show(await ask("GET", path))].flat());
  } catch (error) {
    found.replaceChildren(make("p", { class: "empty" }, error.message));
  }
}

export function sourcePage(profile, preview) {
  const path = `/api/sources/${encodeURIComponent(profile.dataset.name)}`;
  fill(profile, `${path}/profile`, profileTable);
  fill(preview, `${path}/preview?rows=20`, rowsTable);
  document.getElementById("test-source")?.addEventListener("click", async () => {
    const state = document.getElementById("test-state");
    say(state, "Testing…");
    try {
      const found = await ask("POST", `${path}/test`, {});
      say(state, sentence(found.message), !found.reachable);
    } catch (error) {
      say(state, error.message, true);
    }
  });
}

export function addSource(form) {
  const state = form.querySelector(".state");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));
    const { name, primary_key: keys, ...source } = given;
    if (keys) source.primary_key = keys.split(",").map((each) => each.trim()).filter(Boolean);
    try {
      await ask("POST", "/api/sources", { name, source });
      location.assign(`/sources/${encodeURIComponent(name)}`);
    } catch (error) {
      say(state, [error.message, ...(error.problems || []).map((each) => `${each.field}: ${each.message}`)].join(" "), true);
    }
  });
}

/** Files that were sent and are no sources yet. */
export async function uploads(section) {
  const list = section.querySelector(".upload-list");
  const mayChange = section.hasAttribute("data-may-change");
  const state = section.querySelector(".state");

  async function show() {
    try {
      const found = (await ask("GET", "/api/uploads")).filter((each) => each.expires_at);
      section.hidden = !found.length;
      list.replaceChildren(table(found));
    } catch (error) {
      section.hidden = false;
      list.replaceChildren(make("p", { class: "empty" }, error.message));
    }
  }

  function table(found) {
    const heads = ["File", "Sent by", "Bytes", "Removed on", ...(mayChange ? ["Change"] : [])];
    return make("table", {},
      make("thead", {}, make("tr", {}, heads.map((name) => make("th", { scope: "col", class: name === "Bytes" ? "number" : null }, name)))),
      make("tbody", {}, found.map((each) => make("tr", {},
        make("th", { scope: "row" }, make("a", { href: `/sources/${each.uri.replace("source://", "")}` }, each.file_name)),
        make("td", {}, each.created_by),
        make("td", { class: "number" }, each.bytes.toLocaleString()),
        make("td", {}, new Date(each.expires_at).toLocaleDateString(undefined, { dateStyle: "medium" })),
        mayChange && make("td", {},
          button("Keep…", (event) => keep(event.target, each), { class: "quiet", "aria-label": `Keep ${each.file_name} as a source` }),
          button("Remove", () => remove(each), { class: "quiet", "aria-label": `Remove ${each.file_name}` }))))));
  }

  function keep(pressed, upload) {
    const files = new KeptFiles([upload], () => location.reload());
    pressed.parentElement.replaceChildren(files.element, button("Keep", () => files.keepAll(), { class: "strong" }));
    files.element.querySelector("input").focus();
  }

  async function remove(upload) {
    if (!confirm(`Remove ${upload.file_name}? Recipes that read it can no longer be run.`)) return;
    try {
      await ask("DELETE", `/api/uploads/${upload.upload_id}`);
      say(state, "");
      await show();
    } catch (error) {
      say(state, error.message, true);
    }
  }

  await show();
}
