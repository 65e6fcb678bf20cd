// A recipe's schedules, and the address that is called with its exceptions.
import { ask, say } from "../api.js";
import { make } from "../elements.js";

export function schedules(section) {
  const { recipe } = section.dataset;
  const list = section.querySelector(".schedule-list");
  const form = section.querySelector("form");
  const state = section.querySelector(".state");
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (form && zone) form.elements.time_zone.value = zone;

  async function show() {
    try {
      const found = await ask("GET", `/api/schedules?${new URLSearchParams({ recipe_id: recipe })}`);
      list.replaceChildren(found.length ? table(found) : make("p", { class: "empty" }, "It runs only when somebody runs it."));
    } catch (error) {
      list.replaceChildren(make("p", { class: "empty" }, error.message));
    }
  }

  function table(found) {
    const heads = ["When", "Next", "Last", "Told", ...(form ? ["Change"] : [])];
    return make("table", {},
      make("thead", {}, make("tr", {}, heads.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, found.map((each) => make("tr", {},
        make("th", { scope: "row" }, make("code", {}, each.cron), ` ${each.time_zone}`),
        make("td", {}, each.is_paused ? "paused" : clock(each.next_at)),
        make("td", {}, each.last_due_at ? last(each) : "–"),
        make("td", {}, each.notify_url ? `${each.notify_url}${each.notify_above === null ? "" : ` above ${each.notify_above} exceptions`}` : "nobody"),
        form && make("td", {},
          make("button", { type: "button", class: "quiet", onclick: () => change("POST", `/${each.schedule_id}/${each.is_paused ? "resume" : "pause"}`) }, each.is_paused ? "Resume" : "Pause"),
          make("button", { type: "button", class: "quiet", onclick: () => change("DELETE", `/${each.schedule_id}`) }, "Remove"))))));
  }

  async function change(method, path, body) {
    try {
      await ask(method, `/api/schedules${path}`, body);
      say(state, "");
      await show();
      return true;
    } catch (error) {
      say(state, [...(error.problems || []).map((each) => `${each.field} ${each.message}`), ...(error.problems?.length ? [] : [error.message])].join(" "), true);
      return false;
    }
  }

  form?.addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));
    if (given.notify_above) given.notify_above = Number(given.notify_above);
    if (await change("POST", "", { recipe_id: recipe, ...given })) form.elements.cron.value = "";
  });
  show();
}

function last(each) {
  const at = clock(each.last_due_at);
  if (each.last_run_id) return [make("a", { href: `/runs/${each.last_run_id}` }, `run ${each.last_run_id}`), ` ${at}`, each.last_note ? `, ${each.last_note}` : ""];
  return `${at}: ${each.last_note}`;
}

function clock(time) {
  return new Date(time).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}
