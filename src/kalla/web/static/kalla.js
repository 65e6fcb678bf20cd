// Keeps a page true without a reload: follows the page's own address as an event stream, changes only
// what differs, and says so honestly when it cannot. No framework; every page shares it.
"use strict";

const SILENCE_MS = 15000; // the server beats every 5 s
let ahead = 0; // the database's clock against this browser's, in ms

/* ---- times in words ---- */

function words(seconds) {
  if (seconds < 1) return seconds >= 0.001 ? `${Math.round(seconds * 1000)} ms` : "0 s";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  for (const [size, unit, smaller, below] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (whole >= size) {
      const rest = Math.floor((whole % size) / smaller);
      return `${Math.floor(whole / size)} ${unit}` + (rest ? ` ${rest} ${below}` : "");
    }
  }
  return `${whole} s`;
}

function tell(time) {
  const at = Date.parse(time.dateTime);
  const passed = (Date.now() + ahead - at) / 1000;
  const full = Math.floor(Math.abs(passed)); // ticking tenths would only make people nervous
  const span = full < 1 ? "1 s" : words(full).replace(".0", "");
  let text = span;
  if (time.dataset.as === "ago") {
    const rough = span.split(" ").slice(0, 2).join(" ");
    text = passed >= -0.5 ? (full < 1 ? "now" : `${rough} ago`) : `in ${rough}`;
  }
  if (time.dataset.as === "clock") text = new Date(at).toLocaleString();
  if (time.textContent !== text) time.textContent = text;
  const exact = new Date(at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
  if (time.title !== exact) time.title = exact;
}

function tellAll(root = document) {
  root.querySelectorAll("time[data-as]").forEach(tell);
}

/* ---- changing only what differs, so that focus, scroll and selection stay ---- */

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || null : null;
}

function alike(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
}

function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) return;
  if (old.nodeName === "TIME" && old.dataset.as && old.dateTime === fresh.dateTime) return;
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    const kept = (old.nodeName === "DETAILS" && name === "open") || (old.nodeName === "BUTTON" && name === "disabled");
    if (!fresh.hasAttribute(name) && !kept) old.removeAttribute(name);
  }
  if (old.nodeName === "OPTION" && document.activeElement !== old.closest("select")) {
    old.selected = fresh.hasAttribute("selected");
  }
  morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.children) if (keyOf(child)) keyed.set(keyOf(child), child);
  const staying = new Set([...fresh.children].map(keyOf));
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const key = keyOf(wanted);
    let found = null;
    if (key) found = keyed.get(key) || null;
    else if (at && alike(at, wanted)) found = at;
    // What is gone goes first: moving what stays in front of it would cost it the focus.
    while (found && at && at !== found && !staying.has(keyOf(at) || "")) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
    if (!found) {
      old.insertBefore(wanted, at);
      continue;
    }
    if (found === at) at = at.nextSibling;
    else old.insertBefore(found, at);
    morph(found, wanted);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function put(id, html) {
  const old = document.getElementById(id);
  if (!old) return;
  const template = document.createElement("template");
  template.innerHTML = html;
  morphChildren(old, template.content);
}

/* ---- following ---- */

let shown = location.pathname + location.search; // the address whose content is on the page
let stream = null;
let heardAt = 0;
let trueAt = Date.now();
let attempts = 0;
let again = 0;

function show(state, text) {
  const link = document.getElementById("link");
  if (!link) return;
  if (link.dataset.state !== state) link.dataset.state = state;
  const place = link.querySelector(".link-words");
  if (place.textContent !== text) place.textContent = text;
  document.body.toggleAttribute("data-stale", state === "lost" || state === "trouble");
}

function since() {
  return `figures from ${new Date(trueAt).toLocaleTimeString()}`;
}

function follow() {
  leave();
  heardAt = Date.now();
  shown = location.pathname + location.search;
  stream = new EventSource(shown);
  let trouble = null;
  const hear = (event) => {
    const data = JSON.parse(event.data);
    heardAt = Date.now();
    attempts = 0;
    if (data.now) ahead = Date.parse(data.now) - Date.now();
    return data;
  };
  const well = () => {
    if (trouble) return;
    trueAt = Date.now();
    show("live", "Live");
  };
  stream.addEventListener("change", (event) => {
    const { fragments } = hear(event);
    for (const [id, html] of Object.entries(fragments)) put(id, html);
    tellAll();
    well();
    // A part that does not change is in the page, not in the stream: it is fetched when it is there.
    const wants = document.querySelector("[data-wants]");
    if (wants && !document.getElementById(wants.dataset.wants)) visit(shown, false);
  });
  stream.addEventListener("beat", (event) => { hear(event); well(); });
  stream.addEventListener("trouble", (event) => {
    trouble = hear(event).message;
    if (trouble) show("trouble", `${trouble}, ${since()}`);
  });
  stream.addEventListener("bye", () => { leave(); checkLogin(); });
  stream.onerror = lost;
}

function leave() {
  clearTimeout(again);
  if (stream) stream.close();
  stream = null;
}

function lost() {
  leave();
  show("lost", `Connection lost, trying again, ${since()}`);
  attempts += 1;
  again = setTimeout(async () => {
    if (await checkLogin()) follow();
  }, Math.min(500 * 2 ** Math.min(attempts, 5), 4000));
}

// A stream that is refused does not say why; the page itself does.
async function checkLogin() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
    if (answer.type === "opaqueredirect") {
      location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
      return false;
    }
  } catch { /* the server is away: following will find out */ }
  return true;
}

/* ---- going to another view of the same page ---- */

let visits = 0;

/** A form that is sent by its button keeps what is typed into it while links are followed. */
async function visit(address, remember, isLink = false) {
  const mine = ++visits;
  const main = document.getElementById("main");
  main.setAttribute("aria-busy", "true");
  let answer;
  try {
    answer = await fetch(address, { headers: { Accept: "text/html" }, redirect: "manual" });
  } catch {
    answer = null;
  }
  if (mine !== visits) return; // another click was quicker
  if (!answer) {
    main.removeAttribute("aria-busy");
    notice("The server does not answer: the page stays as it is. Try again in a moment.");
    return;
  }
  if (!answer.ok) {
    location.assign(address);
    return;
  }
  const text = await answer.text();
  if (mine !== visits) return; // another click was quicker
  const page = new DOMParser().parseFromString(text, "text/html");
  if (remember) history.pushState({}, "", address);
  document.title = page.title;
  const typed = new Map(isLink ? [...main.querySelectorAll('form[data-soft="submit"] [id]')].map((field) => [field.id, field.value]) : []);
  morph(main, page.getElementById("main")); // busy no longer
  for (const input of main.querySelectorAll("input")) input.value = typed.get(input.id) ?? input.defaultValue;
  for (const select of document.querySelectorAll("select")) {
    const options = [...select.options];
    const stays = options.findIndex((option) => option.value === typed.get(select.id));
    select.selectedIndex = Math.max(stays, 0) || Math.max(options.findIndex((option) => option.hasAttribute("selected")), 0);
  }
  tellAll();
  follow();
  const opened = document.getElementById(new URL(address, location).hash.slice(1));
  if (remember && opened?.matches("[data-opened]")) {
    opened.scrollIntoView({ block: "nearest" });
    opened.querySelector("h2").focus({ preventScroll: true });
  }
}

function visitForm(form) {
  const values = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value) values.append(name, value);
  visit(form.getAttribute("action") + (values.size ? `?${values}` : ""), true);
}

/* ---- commands ---- */

async function command(form) {
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const answer = await fetch(form.action, {
      method: "POST",
      headers: { Accept: "application/json", "Idempotency-Key": key() },
    });
    if (!answer.ok) {
      const problem = await answer.json().catch(() => ({}));
      notice(problem.detail || problem.title || `The server answered ${answer.status}.`);
      if (answer.status === 401) checkLogin();
    }
  } catch {
    notice("The server does not answer: nothing may have happened.");
  } finally {
    button.disabled = false;
  }
}

// crypto.randomUUID is for https and localhost only.
function key() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function notice(text) {
  const box = document.createElement("div");
  box.className = "notice";
  const sentence = document.createElement("p");
  sentence.textContent = text.charAt(0).toUpperCase() + text.slice(1);
  const close = document.createElement("button");
  close.className = "quiet";
  close.textContent = "Close";
  close.addEventListener("click", () => box.remove());
  box.append(sentence, close);
  document.getElementById("notices").append(box);
  setTimeout(() => box.remove(), 12000);
}

/* ---- beginning ---- */

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.matches("[data-command]")) {
    event.preventDefault();
    command(form);
  } else if (form.matches("[data-soft]")) {
    event.preventDefault();
    visitForm(form);
  }
});

document.addEventListener("change", (event) => {
  const form = event.target.closest('form[data-soft]:not([data-soft="submit"])');
  if (form) visitForm(form);
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-soft]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  visit(link.getAttribute("href"), true, true);
});

if (document.body.hasAttribute("data-live")) {
  ahead = Date.parse(document.body.dataset.now) - Date.now();
  follow();
  addEventListener("popstate", () => {
    const here = location.pathname + location.search;
    if (here !== shown) visit(here, false);
  });
  // A hidden page rests: browsers allow few streams per server.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) leave();
    else follow();
  });
  addEventListener("pagehide", leave);
  addEventListener("pageshow", (event) => { if (event.persisted) follow(); });
  setInterval(() => {
    tellAll();
    if (stream && Date.now() - heardAt > SILENCE_MS) lost();
  }, 1000);
}
tellAll();
