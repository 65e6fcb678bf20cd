// The recipe as YAML, in CodeMirror. It lives in a shadow root: there its styles are style sheets of their own,
// which a strict content security policy allows.
import {
  Annotation, EditorState, EditorView, HighlightStyle, bracketMatching, defaultKeymap, drawSelection, highlightActiveLine, history,
  historyKeymap, indentOnInput, indentWithTab, keymap, lineNumbers, lintGutter, lintKeymap, setDiagnostics, syntaxHighlighting, tags, yaml,
} from "../bundled/yaml_editor.js";

const fromForm = Annotation.define();

const colors = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--accent-ink)" },
  { tag: [tags.string, tags.content, tags.attributeValue], color: "var(--ink)" },
  { tag: [tags.lineComment, tags.comment], color: "var(--ink-faint)", fontStyle: "italic" },
  { tag: [tags.separator, tags.punctuation, tags.squareBracket, tags.brace], color: "var(--ink-soft)" },
]);

const look = EditorView.theme({
  "&": { backgroundColor: "var(--surface)", color: "var(--ink)", fontSize: "13px", height: "100%" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-gutters": { backgroundColor: "var(--sunk)", color: "var(--ink-faint)", border: "none", borderRight: "1px solid var(--line)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--accent) 8%, transparent)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground": { backgroundColor: "color-mix(in srgb, var(--accent) 28%, transparent)" },
  // CodeMirror's own marks are images from data: addresses, which the policy refuses.
  ".cm-lint-marker-error": { content: '"●"', color: "var(--bad)", fontSize: "10px", lineHeight: "1.9" },
  ".cm-lintRange-error": { backgroundImage: "none", textDecoration: "underline wavy var(--bad)" },
  ".cm-diagnostic-error": { borderLeftColor: "var(--bad)" },
  ".cm-tooltip": { backgroundColor: "var(--surface)", color: "var(--ink)", border: "1px solid var(--line-strong)" },
});

/** `changed(by_form)` is called after each edit. */
export function textEditor(host, text, changed) {
  const root = host.attachShadow({ mode: "open" });
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(), lintGutter(), history(), drawSelection(), indentOnInput(), bracketMatching(), highlightActiveLine(),
        yaml(), syntaxHighlighting(colors), look,
        keymap.of([...defaultKeymap, ...historyKeymap, ...lintKeymap, indentWithTab]),
        EditorView.contentAttributes.of({ "aria-label": "The recipe as YAML; Escape, then Tab leaves it", tabindex: "0", spellcheck: "false" }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) changed(update.transactions.some((each) => each.annotation(fromForm)));
        }),
      ],
    }),
  });
  return {
    get text() { return view.state.doc.toString(); },
    /** Only what differs is replaced, so that the cursor stays where it is. */
    replace(fresh, byForm = false) {
      const old = view.state.doc.toString();
      if (old === fresh) return;
      let [from, end, freshEnd] = [0, old.length, fresh.length];
      while (from < end && from < freshEnd && old[from] === fresh[from]) from += 1;
      while (end > from && freshEnd > from && old[end - 1] === fresh[freshEnd - 1]) [end, freshEnd] = [end - 1, freshEnd - 1];
      view.dispatch({ changes: { from, to: end, insert: fresh.slice(from, freshEnd) }, annotations: byForm ? fromForm.of(true) : [] });
    },
    mark(problems) {
      const length = view.state.doc.length;
      view.dispatch(setDiagnostics(view.state, problems.map((each) => ({ severity: "error", ...each, from: Math.min(each.from, length), to: Math.min(each.to, length) }))));
    },
    /** Where the text of a problem begins is shown. */
    show(from) {
      view.dispatch({ selection: { anchor: Math.min(from, view.state.doc.length) }, scrollIntoView: true });
      view.focus();
    },
  };
}
