// Axes that read well: round numbers with their units, round moments of the local clock.

const UNITS = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const SPANS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500,
  ...[1, 2, 5, 10, 15, 30].map((n) => n * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE),
  ...[1, 2, 3, 6, 12].map((n) => n * HOUR),
  ...[1, 2, 3, 4, 7, 14, 28, 91, 182, 364, 728].map((n) => n * DAY),
];

/** Round values from below `low` to above `high`, and each one's words. */
export function valueTicks(low, high, wanted) {
  let [from, to] = [low, high];
  if (from > 0 && from < to * 0.5) from = 0; // the ground belongs to the picture if it is near
  if (to < 0 && to > from * 0.5) to = 0;
  if (from === to) {
    const room = Math.abs(from) * 0.1 || 1;
    [from, to] = [from - room, to + room];
  }
  const step = roundStep((to - from) / wanted);
  if (!Number.isFinite(step) || step <= 0) return { ticks: [from, to], from, to, words: (value) => value.toExponential(3) };
  const first = Math.floor(from / step + 1e-9);
  const last = Math.ceil(to / step - 1e-9);
  const ticks = Array.from({ length: Math.min(last - first + 1, 100) }, (_, index) => (first + index) * step);
  return { ticks, from: ticks[0], to: ticks.at(-1), words: wordsFor(ticks, step) };
}

function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  const lead = rough / power;
  return (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 2.5 ? 2.5 : lead <= 5 ? 5 : 10) * power;
}

/** Every tick in the same unit and with the same number of decimals. */
function wordsFor(ticks, step) {
  const largest = Math.max(...ticks.map(Math.abs));
  const [size, unit] = UNITS.find(([least]) => largest >= least) || [1, ""];
  if (largest >= 1e18 || largest < 1e-4) return (value) => (value === 0 ? "0" : Number(value.toPrecision(6)).toExponential());
  const decimals = Math.min(Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9) + (lead(step) === 2.5 ? 1 : 0)), 12);
  return (value) => {
    const text = (value / size).toFixed(decimals);
    return Number(text) === 0 ? "0" : text + unit;
  };
}

function lead(step) {
  return Number((step / 10 ** Math.floor(Math.log10(step) + 1e-9)).toPrecision(3));
}

/** Round moments within [from, to]; a day's name where it begins. */
export function timeTicks(from, to, wanted) {
  const span = SPANS.find((one) => (to - from) / one <= wanted) || SPANS.at(-1);
  const ticks = [];
  for (let at = firstMoment(from, span); at <= to && ticks.length < 100; at = nextMoment(at, span)) {
    if (at >= from) ticks.push(at);
  }
  const words = (at, index) => {
    const date = new Date(at);
    if (span >= 182 * DAY) return date.toLocaleDateString(undefined, { month: "short", year: "numeric" });
    const day = date.toLocaleDateString(undefined, { day: "numeric", month: "short" });
    if (span >= DAY) return day;
    const newDay = index > 0 && new Date(ticks[index - 1]).getDate() !== date.getDate();
    if (newDay && midnight(at) === at) return day;
    return clock(date, span);
  };
  return { ticks, words };
}

export function clock(date, span) {
  const exact = span < MINUTE ? { second: "2-digit" } : {};
  if (span < SECOND) exact.fractionalSecondDigits = 3;
  return date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...exact });
}

function midnight(at) {
  return new Date(at).setHours(0, 0, 0, 0);
}

// Hours and days are counted on the local clock, which jumps twice a year.
function firstMoment(from, span) {
  if (span >= DAY) return midnight(from);
  const start = midnight(from);
  return start + Math.floor((from - start) / span) * span;
}

function nextMoment(at, span) {
  const date = new Date(at);
  if (span >= DAY) return date.setDate(date.getDate() + Math.round(span / DAY));
  if (span >= HOUR) {
    const next = new Date(at).setHours(date.getHours() + span / HOUR);
    return next > at ? next : at + span;
  }
  return at + span;
}

/** The name of the clock that times are told by. */
export function zone() {
  const { timeZone } = Intl.DateTimeFormat().resolvedOptions();
  return timeZone || "local time";
}
