// What each page of sources and recipes begins with. Text of files is only ever put on a page as text.
import { RecipeEditor } from "./recipes/editor.js";
import { schedules } from "./recipes/schedules.js";
import { runAgain } from "./run_again.js";
import { addSource, sourcePage, uploads } from "./sources.js";
import { Start } from "./start.js";

function begin(id, work) {
  const element = document.getElementById(id);
  if (element) work(element);
}

/** What is typed into a recipe, for this tab, until it is saved. */
function draftOf(address) {
  const key = `kalla-draft:${address}`;
  return {
    read: () => sessionStorage.getItem(key),
    keep: (text) => (text === null ? sessionStorage.removeItem(key) : sessionStorage.setItem(key, text)),
  };
}

begin("editor", (editor) => {
  if (!document.getElementById("proposal")) {
    new RecipeEditor(editor, draftOf(location.pathname + location.search));
    return;
  }
  const start = new Start(document.getElementById("main"));
  start.begin(new RecipeEditor(editor, start.draft));
});
begin("run-again", runAgain);
begin("schedules", schedules);
begin("profile", (profile) => sourcePage(profile, document.getElementById("preview")));
begin("add-source", addSource);
begin("uploads", uploads);

// A file that misses its field would replace the page by its content.
for (const name of ["dragover", "drop"]) {
  document.addEventListener(name, (event) => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); });
}
