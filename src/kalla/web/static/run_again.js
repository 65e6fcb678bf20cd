// A saved recipe with other files.
import { ask, say } from "./api.js";
import { FileSide } from "./file_side.js";
import * as tree from "./recipes/document.js";

const OPTIONS = { delimiter: ",", encoding: "utf-8", skip: 0, footer: 0, decimal: ".", thousands: null };

/** Where a file is written otherwise than the recipe says, which is what a run follows. */
function otherwise(recipe, side, shown) {
  const said = tree.read(recipe)?.toJS().sources?.[side]?.csv;
  if (!said || !shown.csv) return [];
  return Object.entries(OPTIONS).flatMap(([name, usual]) => {
    const [ours, found] = [said[name] ?? usual, shown.csv[name] ?? usual];
    return ours === found ? [] : [`${name}: ${JSON.stringify(found)} in the file, ${JSON.stringify(ours)} in the recipe`];
  });
}

export function runAgain(section) {
  const state = section.querySelector("#run-again-state");
  const run = section.querySelector(".panel-head button");
  const sides = [];
  const text = document.getElementById("saved-text").content.textContent;

  /** With one file of two the other side is read as the recipe says it; never because its file was refused. */
  function changed() {
    run.disabled = !sides.some((side) => side.chosen) || sides.some((side) => !["none", "ready"].includes(side.status));
  }

  sides.push(...[...section.querySelectorAll(".side")].map((each) => new FileSide(each, changed, { remarks: (side, shown) => otherwise(text, side, shown) })));
  run.addEventListener("click", async () => {
    run.disabled = true;
    say(state, "Starting…");
    try {
      const others = Object.fromEntries(sides.filter((side) => side.chosen).map((side) => [side.name, side.chosen.uri]));
      const started = await ask("POST", "/api/runs", { recipe_id: section.dataset.recipe, ...others });
      location.assign(`/runs/${started.run_id}`);
    } catch (error) {
      say(state, [error.message, ...(error.problems || []).map((each) => each.message)].join(" "), true);
    }
    changed();
  });
  changed();
}
