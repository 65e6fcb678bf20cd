// A graph of series over time: lines with gaps where there are no points, a crosshair that tells values, a
// legend that hides and shows. Drawn as SVG, so that it is sharp, styled by the stylesheet and easy to test.
import { draw, make } from "./elements.js";
import { inDuration } from "./promql.js";
import { labelsOf } from "./series.js";
import { timeTicks, valueTicks, zone } from "./scales.js";

const MOST = 100; // lines
const HUES = 12;
const TOLD = 8; // values beside the crosshair
const DRAG = 6; // pixels; less is a click
const TOP = 12;
const BOTTOM = 26;
const RIGHT = 14;

export class Graph {
  /** `answer`: a matrix of the API; times in milliseconds. `zoom(start, end)` is told what was marked. */
  constructor(answer, { start, end, step, zoom }) {
    this.start = start;
    this.end = end;
    this.step = step;
    this.zoom = zoom;
    this.total = answer.length;
    this.series = answer.slice(0, MOST).map(lineOf);
    this.differing = differing(this.series);
    this.at = null; // index of the step under the crosshair
    this.near = null; // the series that is set off
    this.from = null; // where a drag began
    this.svg = draw("svg", { role: "img", "aria-label": `${count(this.series.length, "line")} from ${told(start)} to ${told(end)}` });
    this.tip = make("div", { class: "tip", role: "status", hidden: true });
    this.plot = make(
      "div",
      {
        class: "plot", tabindex: "0", role: "group", "aria-label": "Graph. Arrow keys move the crosshair.",
        onpointermove: (event) => this.moved(event),
        onpointerdown: (event) => this.pressed(event),
        onpointerup: (event) => this.released(event),
        onpointerleave: () => this.gone(),
        onkeydown: (event) => this.key(event),
        onblur: () => this.gone(),
      },
      this.svg,
      this.tip,
    );
    this.legend = make("ul", { class: "legend" }, this.series.map((one, index) => this.entry(one, index)));
    this.element = make("div", { class: "graph" }, this.plot, this.note(), this.choices(), this.legend);
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.plot);
  }

  leave() {
    this.observer.disconnect();
  }

  /* ---- what stands below the plot ---- */

  note() {
    const odd = this.series.reduce((sum, one) => sum + one.values.filter((value) => !Number.isFinite(value)).length, 0);
    return make(
      "p",
      { class: "graph-note" },
      make("span", {}, `Times in ${zone()}, a point every ${inDuration(this.step)}`),
      this.total > MOST && make("strong", {}, `The first ${MOST} of ${this.total.toLocaleString("en")} series are drawn`),
      odd > 0 && make("span", {}, `${count(odd, "point")} NaN or infinite: not drawn`),
    );
  }

  choices() {
    const all = (hidden) => () => {
      for (const one of this.series) one.hidden = hidden;
      this.showHidden();
    };
    return make(
      "p",
      { class: "legend-all" },
      make("span", {}, count(this.series.length, "line")),
      make("button", { type: "button", class: "quiet", onclick: all(false) }, "Show all"),
      make("button", { type: "button", class: "quiet", onclick: all(true) }, "Hide all"),
    );
  }

  entry(one, index) {
    const set = (near) => () => this.setOff(near);
    return make("li", {}, make(
      "button",
      {
        type: "button", "aria-pressed": "true", title: "Hide or show; with Ctrl or a double click this one alone",
        onclick: (event) => (event.ctrlKey || event.metaKey ? this.only(index) : this.toggle(index)),
        ondblclick: () => this.only(index),
        onpointerenter: set(index), onpointerleave: set(null), onfocus: set(index), onblur: set(null),
      },
      make("span", { class: "swatch", "data-hue": index % HUES }),
      labelsOf(one.metric),
    ));
  }

  toggle(index) {
    this.series[index].hidden = !this.series[index].hidden;
    this.showHidden();
  }

  only(index) {
    this.series.forEach((one, other) => { one.hidden = other !== index; });
    this.showHidden();
  }

  showHidden() {
    this.series.forEach((one, index) => this.legend.children[index].firstChild.setAttribute("aria-pressed", String(!one.hidden)));
    this.render();
  }

  setOff(index) {
    this.near = index;
    this.svg.toggleAttribute("data-near", index !== null);
    for (const line of this.svg.querySelectorAll(".line")) line.toggleAttribute("data-near", Number(line.dataset.index) === index);
  }

  /** Beside the crosshair there is room for the labels by which the lines differ. */
  telling(metric) {
    return Object.fromEntries(Object.entries(metric).filter(([name]) => !this.differing.size || this.differing.has(name)));
  }

  /* ---- drawing ---- */

  fit() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (!width || (width === this.width && height === this.height)) return;
    [this.width, this.height] = [width, height];
    this.render();
  }

  render() {
    if (!this.width) return;
    const [low, high] = bounds(this.series.filter((one) => !one.hidden));
    const scale = valueTicks(low, high, this.height > 280 ? 6 : 4);
    const words = scale.ticks.map(scale.words);
    this.margin = 16 + Math.max(...words.map((text) => text.length)) * 7;
    this.x = linear(this.start, Math.max(this.end, this.start + 1), this.margin, this.width - RIGHT);
    this.y = linear(scale.from, scale.to, this.height - BOTTOM, TOP);
    const times = timeTicks(this.start, Math.max(this.end, this.start + 1), Math.max(2, Math.floor((this.width - this.margin) / 84)));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.cross = draw("g", { class: "cross" });
    this.band = draw("rect", { class: "band", y: TOP, height: this.height - TOP - BOTTOM, width: 0 });
    this.svg.replaceChildren(
      draw("g", { class: "grid" }, scale.ticks.map((tick) => draw("line", { x1: this.margin, x2: this.width - RIGHT, y1: snap(this.y(tick)), y2: snap(this.y(tick)), class: tick === 0 ? "zero-line" : null }))),
      draw("g", { class: "ticks" },
        scale.ticks.map((tick, index) => draw("text", { x: this.margin - 8, y: this.y(tick) + 4, "text-anchor": "end" }, words[index])),
        times.ticks.map((at, index) => [
          draw("line", { x1: snap(this.x(at)), x2: snap(this.x(at)), y1: this.height - BOTTOM, y2: this.height - BOTTOM + 4 }),
          draw("text", { x: this.x(at), y: this.height - 8, "text-anchor": this.anchor(this.x(at)) }, times.words(at, index)),
        ])),
      this.band,
      draw("g", { class: "lines" }, this.series.map((one, index) => (one.hidden ? null : draw("path", { class: "line", "data-index": index, "data-hue": index % HUES, d: this.path(one) })))),
      this.cross,
    );
    this.setOff(this.near);
    this.point();
  }

  anchor(x) {
    return x > this.width - RIGHT - 20 ? "end" : x < this.margin + 4 ? "start" : "middle";
  }

  /** Points a step apart are joined; one alone is a dot. More points than pixels: each pixel's extremes. */
  path(one) {
    const parts = [];
    const gap = this.step * 1.5;
    const pixels = this.width - this.margin - RIGHT;
    const dense = one.times.length > pixels * 2;
    let before = null;
    let column = null;
    let alone = false;
    const to = (time, value, joined) => {
      if (!joined && alone) parts.push("h0");
      parts.push(`${joined ? "L" : "M"}${this.x(time).toFixed(1)} ${this.y(value).toFixed(1)}`);
      alone = !joined;
    };
    const flush = () => {
      if (!column) return;
      const points = [column.first, ...[column.low, column.high].sort((a, b) => a[0] - b[0]), column.last];
      points.filter((point, index) => index === 0 || point !== points[index - 1]).forEach(([time, value], index) => to(time, value, index > 0 || column.joined));
      column = null;
    };
    one.times.forEach((time, index) => {
      const value = one.values[index];
      if (!Number.isFinite(value)) {
        before = null;
        return;
      }
      const joined = before !== null && time - before <= gap;
      before = time;
      if (!dense) {
        to(time, value, joined);
        return;
      }
      const x = Math.floor(this.x(time));
      const point = [time, value];
      if (!column || column.x !== x || !joined) {
        flush();
        column = { x, joined, first: point, last: point, low: point, high: point };
        return;
      }
      column.last = point;
      if (value < column.low[1]) column.low = point;
      if (value > column.high[1]) column.high = point;
    });
    flush();
    if (alone) parts.push("h0");
    return parts.join("");
  }

  /* ---- the crosshair ---- */

  moved(event) {
    const box = this.plot.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (this.from !== null) {
      const [low, high] = [Math.min(this.from, x), Math.max(this.from, x)].map((one) => this.inside(one));
      this.band.setAttribute("x", low);
      this.band.setAttribute("width", high - low);
    }
    const steps = Math.floor((this.end - this.start) / this.step);
    const time = this.x.back(this.inside(x));
    this.at = Math.min(Math.max(Math.round((time - this.start) / this.step), 0), steps);
    this.point(y);
  }

  pressed(event) {
    if (event.button !== 0 || event.pointerType !== "mouse") return;
    this.from = event.clientX - this.plot.getBoundingClientRect().left;
    this.plot.setPointerCapture(event.pointerId);
  }

  released(event) {
    if (this.from === null) return;
    const to = event.clientX - this.plot.getBoundingClientRect().left;
    const [low, high] = [Math.min(this.from, to), Math.max(this.from, to)];
    this.from = null;
    this.band.setAttribute("width", 0);
    if (high - low >= DRAG) this.zoom(this.x.back(this.inside(low)), this.x.back(this.inside(high)));
  }

  gone() {
    if (this.from !== null) return;
    this.at = null;
    this.point();
    this.setOff(null);
  }

  key(event) {
    const steps = Math.floor((this.end - this.start) / this.step);
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") this.gone();
    if (!by) return;
    event.preventDefault();
    const from = this.at === null ? (by > 0 ? -1 : steps + 1) : this.at;
    this.at = Math.min(Math.max(from + by, 0), steps);
    this.point();
  }

  inside(x) {
    return Math.min(Math.max(x, this.margin), this.width - RIGHT);
  }

  /** Tell the values at the crosshair: those nearest to the pointer, the highest on top. */
  point(y = null) {
    if (this.at === null) {
      this.cross.replaceChildren();
      this.tip.hidden = true;
      return;
    }
    const time = this.start + this.at * this.step;
    const x = this.x(time);
    const found = this.series
      .map((one, index) => ({ one, index, value: one.hidden ? undefined : valueAt(one, time, this.step) }))
      .filter(({ value }) => value !== undefined);
    const height = ({ value }) => (Number.isFinite(value) ? this.y(value) : TOP);
    const nearest = [...found].sort((a, b) => (y === null ? a.index - b.index : Math.abs(height(a) - y) - Math.abs(height(b) - y)));
    const shown = nearest.slice(0, TOLD).sort((a, b) => b.value - a.value || a.index - b.index);
    const near = y !== null && nearest.length > 1 ? nearest[0].index : null;
    if (near !== this.near) this.setOff(near);
    this.cross.replaceChildren(
      draw("line", { x1: snap(x), x2: snap(x), y1: TOP, y2: this.height - BOTTOM }),
      ...shown.filter(({ value }) => Number.isFinite(value)).map((one) => draw("circle", { cx: x, cy: this.y(one.value), r: 3.5, "data-hue": one.index % HUES })),
    );
    this.tip.replaceChildren(...[
      make("p", { class: "tip-time" }, told(time)),
      ...shown.map(({ one, index, value }) => make(
        "p",
        { class: "tip-line", "data-near": y !== null && shown.length > 1 && index === nearest[0].index },
        make("span", { class: "swatch", "data-hue": index % HUES }),
        make("span", { class: "tip-name" }, labelsOf(this.telling(one.metric))),
        make("b", {}, valueText(value)),
      )),
      found.length > shown.length && make("p", { class: "tip-more" }, `and ${found.length - shown.length} more`),
      found.length === 0 && make("p", { class: "tip-more" }, "no points"),
    ].filter(Boolean));
    this.tip.hidden = false;
    // Beside the crosshair, where there is more room; a narrow plot has none, and the tip covers it.
    const wide = this.tip.offsetWidth;
    const place = x > this.width / 2 ? x - 12 - wide : x + 12;
    this.tip.style.left = `${Math.max(4, Math.min(place, this.width - wide - 4))}px`;
  }
}

/* ---- series as columns ---- */

function lineOf({ metric, values }) {
  return {
    metric,
    times: values.map(([seconds]) => Math.round(seconds * 1000)),
    values: values.map(([, text]) => numberOf(text)),
    hidden: false,
  };
}

function differing(series) {
  const names = new Set(series.flatMap(({ metric }) => Object.keys(metric)));
  return new Set([...names].filter((name) => new Set(series.map(({ metric }) => metric[name])).size > 1));
}

function numberOf(text) {
  return text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text);
}

function valueAt(one, time, step) {
  let [low, high] = [0, one.times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (one.times[middle] < time - step / 2) low = middle + 1;
    else high = middle;
  }
  return low < one.times.length && one.times[low] < time + step / 2 ? one.values[low] : undefined;
}

function bounds(series) {
  let [low, high] = [Infinity, -Infinity];
  for (const { values } of series) {
    for (const value of values) {
      if (!Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low > high ? [0, 1] : [low, high];
}

function linear(from, to, low, high) {
  const scale = (value) => low + ((value - from) / (to - from)) * (high - low);
  scale.back = (place) => from + ((place - low) / (high - low)) * (to - from);
  return scale;
}

// Thin lines are sharp in the middle of a pixel.
function snap(place) {
  return Math.round(place) + 0.5;
}

function told(time) {
  return new Date(time).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

function valueText(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
  return Math.abs(value) < 1e15 && Math.abs(value) >= 1e-4 ? Number(value.toPrecision(8)).toLocaleString("en", { maximumFractionDigits: 12 }) : String(Number(value.toPrecision(8)));
}
