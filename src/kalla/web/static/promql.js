// Reads PromQL as far as an editor must: words and their kinds, and what may stand at the caret.
// Half-typed text is the usual case, so nothing here is ever an error.

const TOKEN = new RegExp(
  [
    /(?<comment>#[^\n]*)/,
    /(?<string>"(?:\\[^\n]|[^"\\\n])*"?|'(?:\\[^\n]|[^'\\\n])*'?|`[^`]*`?)/,
    /(?<number>0[xX][0-9a-fA-F_]+|(?:\d+(?:ms|[smhdwy]))+(?![\w.])|\d[\d_]*(?:\.[\d_]*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)/,
    /(?<word>[A-Za-z_:][\w:]*)/,
    /(?<sign>=~|!~|==|!=|<=|>=|[-+*/%^<>=@,:])/,
    /(?<bracket>[(){}[\]])/,
    /(?<other>\s+|.)/,
  ].map((part) => part.source).join("|"),
  "gsu",
);
const PAIRS = { "(": ")", "{": "}", "[": "]" };
const GROUPING = new Set(["by", "without", "on", "ignoring", "group_left", "group_right"]);
const PLAIN_NAME = /^[A-Za-z_:][A-Za-z0-9_:]*$/;
const PLAIN_LABEL = /^[A-Za-z_][A-Za-z0-9_]*$/;

/** Kinds of words: a Map from word to "function", "aggregation" or "keyword". */
export function tokens(text, kinds) {
  const found = [];
  let inside = null; // the bracket around: what it is, the metric before it, the bracket around it
  let before = null; // the last token that is neither space nor comment
  for (const match of text.matchAll(TOKEN)) {
    const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
    const token = { kind, text: match[0], start: match.index, end: match.index + match[0].length, inside, before };
    found.push(token);
    if (kind === "word") token.kind = named(token, text, kinds);
    if (PAIRS[token.text]) {
      inside = { bracket: token.text, grouping: grouping(before), metric: before && before.kind === "metric" ? before.text : "", outer: inside };
    } else if (inside && PAIRS[inside.bracket] === token.text) inside = inside.outer;
    token.after = inside;
    if (kind !== "other" && kind !== "comment") before = token;
  }
  return found;
}

function named(token, text, kinds) {
  const { inside } = token;
  if (inside && (inside.bracket === "{" || inside.grouping)) return "label";
  const word = token.text.toLowerCase();
  const kind = kinds.get(word);
  if (kind === "function") return /^\s*\(/.test(text.slice(token.end)) ? "function" : "metric";
  if (kind) return kind;
  return word === "inf" || word === "nan" ? "number" : "metric";
}

function grouping(before) {
  return before !== null && before.kind === "keyword" && GROUPING.has(before.text.toLowerCase());
}

/** What may be completed at the caret: {kind, from, to, typed, ...}, or null. */
export function placeOf(text, caret, kinds) {
  const all = tokens(text, kinds);
  const at = all.find((token) => token.start < caret && caret <= token.end) || null;
  if (at && at.kind === "comment") return null;
  if (at && at.kind === "string") return within(at, caret) ? valueAt(all, at, caret) : null;
  if (at && at.kind === "number" && /^[\d.]/.test(at.text)) {
    return inRange(at) ? { kind: "duration", from: at.start, to: at.end, typed: at.text } : null;
  }
  const word = at && /^[A-Za-z_:]/.test(at.text) ? at : null;
  const spot = word ? { from: word.start, to: word.end, typed: text.slice(word.start, caret) } : { from: caret, to: caret, typed: "" };
  const around = word ? word.inside : at && at.after;
  const before = word || (at && at.kind === "other") ? at.before : at;
  if (around && around.bracket === "{") {
    if (before && before.text !== "," && before.text !== "{") return null;
    return { kind: "matcher", ...spot, selector: selectorOf(all, around, null) };
  }
  if (around && around.grouping) return { kind: "label", ...spot, selector: nearestMetric(all, caret) };
  if (around && around.bracket === "[") return word ? null : { kind: "duration", ...spot };
  return { kind: "expression", ...spot };
}

function inRange(token) {
  return token.inside !== null && token.inside.bracket === "[";
}

function within(token, caret) {
  return caret < token.end || token.text.length === 1 || token.text.at(-1) !== token.text[0];
}

function valueAt(all, token, caret) {
  const { inside, before } = token;
  if (!inside || inside.bracket !== "{") return null;
  if (!before || before.kind !== "sign" || before.text === ",") return null;
  const name = before.before;
  if (!name || (name.kind !== "label" && name.kind !== "string")) return null;
  const regex = before.text.endsWith("~");
  const closed = !within(token, token.end);
  const begun = token.text.slice(1, caret - token.start);
  const rest = closed ? token.text.slice(caret - token.start, -1) : "";
  // Of alternatives in a regular expression one is typed, the others stay.
  const [head, tail] = regex ? [begun.slice(0, begun.lastIndexOf("|") + 1), /\|.*$|$/s.exec(rest)[0]] : ["", ""];
  return {
    kind: "value", from: token.start, to: closed ? token.end : caret, quote: token.text[0], regex, head, tail,
    typed: begun.slice(head.length).replace(/\\+(.)/gs, "$1"),
    label: name.kind === "string" ? name.text.slice(1, -1) : name.text,
    selector: selectorOf(all, inside, token),
  };
}

/** The selector around, without the matcher that is being typed: what its completions must fit. */
function selectorOf(all, around, typing) {
  const matchers = [];
  for (const token of all) {
    if (token.kind !== "string" || token === typing || token.inside !== around) continue;
    if (within(token, token.end)) continue; // not closed yet
    const sign = token.before;
    if (!sign) continue;
    if (sign.kind === "sign" && sign.text !== ",") {
      if (sign.before) matchers.push(`${sign.before.text}${sign.text}${token.text}`);
    } else if (token.text.length > 2 && !isLabel(all, token)) matchers.push(token.text); // {"a metric's name"}
  }
  if (!matchers.length) return around.metric;
  return `${around.metric}{${matchers.join(",")}}`;
}

function isLabel(all, token) {
  return all.some((other) => other.kind === "sign" && other.text !== "," && other.before === token);
}

function nearestMetric(all, caret) {
  const metrics = all.filter((token) => token.kind === "metric");
  return (metrics.find((token) => token.start >= caret) || metrics.at(-1) || { text: "" }).text;
}

export function quoted(value, quote = '"') {
  if (quote === "`" && !value.includes("`")) return `\`${value}\``;
  const mark = quote === "`" ? '"' : quote;
  const escaped = value.replaceAll("\\", "\\\\").replaceAll(mark, `\\${mark}`).replaceAll("\n", "\\n").replaceAll("\r", "\\r").replaceAll("\t", "\\t");
  return mark + escaped + mark;
}

export function asMetric(name) {
  return PLAIN_NAME.test(name) ? name : `{${quoted(name)}}`;
}

export function asLabel(name) {
  return PLAIN_LABEL.test(name) ? name : quoted(name);
}

/** A regular expression that fits this text alone. */
export function literally(text) {
  return text.replace(/[\\.+*?()|[\]{}^$]/g, "\\$&");
}

/** Index of line:column, both from one; columns count the bytes of UTF-8. */
export function indexOf(text, line, column) {
  const lines = text.split("\n");
  if (line > lines.length) return text.length;
  const before = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  const encoder = new TextEncoder();
  let bytes = 1;
  let index = before;
  for (const character of lines[line - 1]) {
    if (bytes >= column) break;
    bytes += encoder.encode(character).length;
    index += character.length;
  }
  return index;
}

const UNITS = [["y", 31536000000], ["w", 604800000], ["d", 86400000], ["h", 3600000], ["m", 60000], ["s", 1000], ["ms", 1]];

/** Milliseconds of a duration like 1h30m or of a number of seconds; NaN if it is neither. */
export function duration(text) {
  if (/^\d+(\.\d+)?$/.test(text)) return Math.round(Number(text) * 1000);
  if (!/^(\d+(ms|[smhdwy]))+$/.test(text)) return NaN;
  let sum = 0;
  for (const [, count, unit] of text.matchAll(/(\d+)(ms|[smhdwy])/g)) sum += Number(count) * UNITS.find(([name]) => name === unit)[1];
  return sum;
}

export function inDuration(milliseconds) {
  let rest = Math.round(milliseconds);
  let text = "";
  for (const [unit, size] of UNITS.filter(([name]) => name !== "y" && name !== "w")) {
    if (rest >= size) text += `${Math.floor(rest / size)}${unit}`;
    rest %= size;
  }
  return text || "0s";
}
