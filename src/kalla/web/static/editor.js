// The expression editor: a textarea over a coloured mirror of its text, with completion at the caret.
import { make } from "./elements.js";
import { Names } from "./names.js";
import { asLabel, asMetric, literally, placeOf, quoted, tokens } from "./promql.js";

const SHOWN = 50;
const PAUSE_MS = 120; // typing goes on: ask only when it rests
const DURATIONS = ["1m", "5m", "15m", "30m", "1h", "6h", "1d", "7d"];

export class Editor {
  constructor(form) {
    this.input = form.querySelector("#expr");
    this.mirror = form.querySelector("#mirror");
    this.list = form.querySelector("#choices");
    const vocabulary = JSON.parse(form.dataset.vocabulary);
    this.words = Object.entries(vocabulary).flatMap(([kind, words]) => words.map(([text, hint]) => ({ kind, text, hint })));
    this.kinds = new Map(this.words.map(({ text, kind }) => [text, kind]));
    this.names = new Names();
    this.wrong = null; // the index an error speaks of
    this.place = null;
    this.items = [];
    this.active = 0;
    this.asked = 0;
    this.waiting = 0;
    this.input.addEventListener("input", (event) => {
      this.wrong = null;
      this.paint();
      const typing = event.inputType && event.inputType.startsWith("insert") && event.inputType !== "insertFromPaste";
      if (typing || !this.list.hidden) this.suggest(false);
      else this.close();
    });
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("blur", () => this.close());
    this.input.addEventListener("focus", () => this.names.metricNames());
    this.input.addEventListener("click", () => this.close());
    this.input.addEventListener("scroll", () => this.close());
    this.list.addEventListener("mousedown", (event) => event.preventDefault()); // the caret stays where it is
    this.list.addEventListener("click", (event) => {
      const item = event.target.closest("[role=option]");
      if (item) this.accept(Number(item.dataset.index));
    });
    addEventListener("resize", () => this.close());
  }

  get text() {
    return this.input.value;
  }

  set text(text) {
    if (this.input.value !== text) this.input.value = text;
    this.wrong = null;
    this.close();
    this.paint();
  }

  /** Mark where an error is; the next change takes the mark away. */
  mark(index) {
    this.wrong = index;
    this.paint();
  }

  paint() {
    const { text } = this;
    const parts = tokens(text, this.kinds).map((token) => {
      const wrong = this.wrong !== null && token.start <= this.wrong && this.wrong < token.end;
      const tag = token.kind === "other" && !wrong ? null : make("span", { "data-kind": token.kind, class: wrong ? "wrong" : null }, token.text);
      return tag || token.text;
    });
    if (this.wrong !== null && this.wrong >= text.length) parts.push(make("span", { class: "wrong" }, "\u00a0"));
    this.mirror.replaceChildren(...parts, "\u200b"); // a last line that is empty is a line as well
  }

  /* ---- completion ---- */

  key(event) {
    const open = !this.list.hidden;
    if (event.isComposing) return;
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      this.suggest(true);
    } else if (event.key === "Enter" && (event.ctrlKey || event.shiftKey || event.metaKey)) {
      event.preventDefault();
      this.close();
      this.input.form.requestSubmit();
    } else if (open && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      const by = event.key === "ArrowDown" ? 1 : -1;
      this.choose((this.active + by + this.items.length) % this.items.length);
    } else if (open && (event.key === "PageDown" || event.key === "PageUp")) {
      event.preventDefault();
      const by = event.key === "PageDown" ? 8 : -8;
      this.choose(Math.min(Math.max(this.active + by, 0), this.items.length - 1));
    } else if (open && (event.key === "Enter" || (event.key === "Tab" && !event.shiftKey))) {
      event.preventDefault();
      this.accept(this.active);
    } else if (open && event.key === "Escape") {
      event.preventDefault();
      this.close();
    } else if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) this.close();
  }

  /** Offer what fits at the caret; unasked, only where something was begun. */
  async suggest(asked) {
    clearTimeout(this.waiting);
    const mine = ++this.asked;
    const { selectionStart: caret, selectionEnd } = this.input;
    const place = caret === selectionEnd ? placeOf(this.text, caret, this.kinds) : null;
    if (!place || (!asked && !place.typed && !["matcher", "label", "value"].includes(place.kind))) {
      this.close();
      return;
    }
    const known = this.names.known(place);
    if (!known) await new Promise((resolve) => { this.waiting = setTimeout(resolve, asked ? 0 : PAUSE_MS); });
    if (mine !== this.asked) return;
    const found = known || (await this.names.find(place));
    if (mine !== this.asked || !found || document.activeElement !== this.input) return;
    this.offer(place, ranked(this.candidates(place, found), place.typed));
  }

  candidates(place, found) {
    if (place.kind === "expression") return [...found, ...this.words];
    if (place.kind === "duration") return DURATIONS.map((text) => ({ kind: "duration", text, hint: "" }));
    return found;
  }

  offer(place, items) {
    if (!items.length || (items.length === 1 && items[0].text === place.typed && place.kind !== "matcher")) {
      this.close();
      return;
    }
    this.place = place;
    this.items = items;
    this.list.replaceChildren(
      ...items.map((item, index) => make(
        "li",
        { role: "option", id: `choice-${index}`, "data-index": index, "data-kind": item.kind, "aria-selected": "false", title: item.help },
        make("span", { class: "choice" }, emphasised(item.text, place.typed)),
        make("span", { class: "hint" }, item.hint || item.kind),
      )),
    );
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.settle(place.from);
    this.choose(0);
  }

  /** Below the beginning of the word, inside the editor's width. */
  settle(index) {
    const spot = this.spot(index);
    const home = this.list.offsetParent.getBoundingClientRect();
    const widest = home.width - this.list.offsetWidth - 8;
    this.list.style.left = `${Math.max(8, Math.min(spot.left - home.left - 10, widest))}px`;
    this.list.style.top = `${spot.bottom - home.top + 4}px`;
  }

  spot(index) {
    const walker = document.createTreeWalker(this.mirror, NodeFilter.SHOW_TEXT);
    let rest = index;
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (rest < node.length) {
        const range = document.createRange();
        range.setStart(node, rest);
        range.setEnd(node, rest + 1);
        return range.getBoundingClientRect();
      }
      rest -= node.length;
    }
    return this.mirror.getBoundingClientRect();
  }

  choose(index) {
    const old = this.list.children[this.active];
    if (old) old.setAttribute("aria-selected", "false");
    this.active = index;
    const item = this.list.children[index];
    item.setAttribute("aria-selected", "true");
    item.scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", item.id);
  }

  accept(index) {
    const { place } = this;
    const item = this.items[index];
    const next = this.text.slice(place.to);
    this.close();
    const [text, back] = inserted(item, place, next);
    this.input.setSelectionRange(place.from, place.to);
    // The one way that leaves undo working; setRangeText forgets what was there.
    if (!document.execCommand("insertText", false, text)) {
      this.input.setRangeText(text, place.from, place.to, "end");
      this.paint();
    }
    const caret = place.from + text.length - back;
    this.input.setSelectionRange(caret, caret);
    this.close();
    if (place.kind === "matcher") this.suggest(false);
  }

  close() {
    this.asked += 1;
    clearTimeout(this.waiting);
    this.names.leave();
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}

/** The text to put in, and how far before its end the caret belongs. */
function inserted(item, place, next) {
  if (place.kind === "value") {
    const value = quoted(place.regex ? literally(item.text) : item.text, place.quote);
    return [value[0] + place.head + value.slice(1, -1) + place.tail + value[0], 0];
  }
  if (place.kind === "matcher") return /^\s*(=|!)/.test(next) ? [asLabel(item.text), 0] : [`${asLabel(item.text)}=""`, 1];
  if (place.kind === "label") return [asLabel(item.text), 0];
  if (item.kind === "metric") return [asMetric(item.text), 0];
  if (item.kind === "function") return /^\s*\(/.test(next) ? [item.text, 0] : [`${item.text}()`, item.hint === "()" ? 0 : 1];
  return [item.text, 0];
}

/** What begins with the typed text first, then what holds it; shorter before longer. */
function ranked(items, typed) {
  const wanted = typed.toLowerCase();
  const found = [];
  for (const item of items) {
    const at = item.text.toLowerCase().indexOf(wanted);
    if (at >= 0) found.push([at === 0 ? 0 : /[^a-z0-9]/i.test(item.text[at - 1]) ? 1 : 2, item]);
  }
  if (typed) found.sort(([a, one], [b, other]) => a - b || one.text.length - other.text.length || (one.text < other.text ? -1 : 1));
  return found.slice(0, SHOWN).map(([, item]) => item);
}

function emphasised(text, typed) {
  const at = typed ? text.toLowerCase().indexOf(typed.toLowerCase()) : -1;
  if (at < 0) return [text];
  return [text.slice(0, at), make("b", {}, text.slice(at, at + typed.length)), text.slice(at + typed.length)];
}
