// What every chart shares: the page's own colours, numbers and times on its axes, and its width.
import uPlot from "./bundled/uplot.js";

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** A colour of the stylesheet: charts follow light and dark as the page does. */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function valueText(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
  const short = Number(value.toPrecision(8));
  const plain = Math.abs(short) < 1e15 && (short === 0 || Math.abs(short) >= 1e-4);
  return plain ? short.toLocaleString("en", { maximumFractionDigits: 12 }) : String(short);
}

function tickText(value) {
  if (value === 0 || (Math.abs(value) < 1000 && Math.abs(value) >= 1e-4)) return valueText(value);
  if (Math.abs(value) >= 1e15 || Math.abs(value) < 1e-4) return Number(value.toPrecision(6)).toExponential();
  return Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 6 }).format(value);
}

function look(axis) {
  return {
    font: FONT, stroke: () => color("ink-faint"), grid: { stroke: () => color("line"), width: 1 },
    ticks: { stroke: () => color("line-strong"), width: 1, size: 4 }, ...axis,
  };
}

/** An axis of moments on the local clock, in seconds. */
export function timeAxis() {
  const day = "{D} {MMM}";
  const at = (span, short, newYear, newDay) => [span, short, newYear, null, newDay, null, null, null, 0];
  return look({
    space: 84,
    grid: { show: false },
    values: [
      at(365 * DAY, "{YYYY}", null, null),
      at(28 * DAY, "{MMM} {YYYY}", null, null),
      at(DAY, day, `${day}\n{YYYY}`, null),
      at(MINUTE, "{HH}:{mm}", `${day}\n{HH}:{mm}`, `${day}\n{HH}:{mm}`),
      at(1, "{HH}:{mm}:{ss}", `${day}\n{HH}:{mm}:{ss}`, `${day}\n{HH}:{mm}:{ss}`),
      at(0.001, "{HH}:{mm}:{ss}.{fff}", null, null),
    ],
  });
}

/** An axis of values, as wide as its longest number. */
export function valueAxis() {
  return look({
    values: (_, splits) => splits.map(tickText),
    size: (_, words) => 16 + 7 * Math.max(3, ...(words || []).map((text) => text.length)),
  });
}

/** A chart in `element` that keeps its width and follows light and dark; call what it returns to end it. */
export function chart(element, options, data) {
  const size = () => ({ width: Math.max(element.clientWidth, 120), height: Math.max(element.clientHeight, 80) });
  const plot = new uPlot({ legend: { show: false }, ...options, ...size() }, data, element);
  const observer = new ResizeObserver(() => plot.setSize(size()));
  observer.observe(element);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const repaint = () => plot.redraw(false, true);
  dark.addEventListener("change", repaint);
  const end = () => {
    observer.disconnect();
    dark.removeEventListener("change", repaint);
    plot.destroy();
  };
  return { plot, end };
}
