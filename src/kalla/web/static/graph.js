// A graph of series over time: lines with gaps where there are no points, a crosshair that shows values, a
// legend that hides and shows. uPlot draws it; what stands beside and below the plot is made here.
import { chart, color, timeAxis, valueAxis, valueText } from "./charts.js";
import { make } from "./elements.js";
import { inDuration } from "./promql.js";
import { labelsOf } from "./series.js";

const MOST = 100; // lines
const HUES = 12;
const VALUES = 8; // beside the crosshair
const MOST_POINTS = 11_000; // of a line: as many as the API gives

export class Graph {
  /** `answer`: a matrix of the API; times in milliseconds. `zoom(start, end)` is called with what was marked. */
  constructor(answer, { start, end, step, zoom }) {
    Object.assign(this, { start, end, step, zoom });
    this.total = answer.length;
    this.steps = Math.min(Math.floor((end - start) / step), MOST_POINTS);
    this.series = answer.slice(0, MOST).map(({ metric, values }) => ({ metric, values: this.onSteps(values), hidden: false }));
    this.differing = differing(this.series);
    this.tip = make("div", { class: "tip", role: "status", hidden: true });
    this.plot = make("div", {
      class: "plot", tabindex: "0", role: "group", onkeydown: (event) => this.key(event), onblur: () => this.moveTo(null),
    });
    this.legend = make("ul", { class: "legend" }, this.series.map((one, index) => this.entry(one, index)));
    this.element = make("div", { class: "graph" }, this.plot, this.note(), this.choices(), this.legend);
    this.describe();
    requestAnimationFrame(() => this.draw()); // its size is known once it is on the page
  }

  leave() {
    this.left = true;
    this.endChart?.();
  }

  /** One value for each step; undefined where there is no point. */
  onSteps(points) {
    const values = new Array(this.steps + 1);
    for (const [seconds, text] of points) {
      const place = Math.round((seconds * 1000 - this.start) / this.step);
      if (place >= 0 && place <= this.steps) values[place] = numberOf(text);
    }
    return values;
  }

  draw() {
    if (this.left) return;
    const times = Array.from({ length: this.steps + 1 }, (_, place) => (this.start + place * this.step) / 1000);
    const lines = this.series.map(({ values }) => Array.from(values, (value) => (Number.isFinite(value) ? value : null)));
    const { plot, end } = chart(this.plot, {
      scales: { x: { range: () => [this.start / 1000, Math.max(this.end, this.start + 1) / 1000] }, y: { range: aroundValues } },
      axes: [timeAxis(), valueAxis()],
      padding: [12, 14, null, null],
      series: [{}, ...this.series.map((_, index) => ({ stroke: () => color(`hue-${index % HUES}`), width: 1.5, points: { show: () => false, filter: alone, size: 4 } }))],
      focus: { alpha: 0.28 },
      cursor: {
        drag: { x: true, y: false, setScale: false, dist: 6 }, focus: { prox: -1 },
        points: { size: 7 }, bind: { dblclick: () => null },
      },
      hooks: { setCursor: [() => this.point()], setSelect: [(it) => this.marked(it)] },
    }, [times, ...lines]);
    this.chart = plot;
    this.endChart = end;
    this.plot.append(this.tip);
  }

  /* ---- what stands below the plot ---- */

  note() {
    const odd = this.series.reduce((sum, one) => sum + one.values.filter((value) => !Number.isFinite(value)).length, 0);
    const { timeZone } = Intl.DateTimeFormat().resolvedOptions();
    return make(
      "p",
      { class: "graph-note" },
      make("span", {}, `Times in ${timeZone || "local time"}, a point every ${inDuration(this.step)}`),
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
    this.chart?.batch(() => this.series.forEach((one, index) => {
      this.legend.children[index].firstChild.setAttribute("aria-pressed", String(!one.hidden));
      this.chart.setSeries(index + 1, { show: !one.hidden });
    }));
    this.describe();
  }

  describe() {
    const lines = this.series.filter((one) => !one.hidden).length;
    this.plot.dataset.lines = lines;
    this.plot.setAttribute("aria-label", `Graph of ${count(lines, "line")} from ${inWords(this.start)} to ${inWords(this.end)}. Arrow keys move the crosshair.`);
  }

  setOff(index) {
    this.chart?.setSeries(index === null ? null : index + 1, { focus: true });
  }

  /* ---- the crosshair ---- */

  marked({ select, posToVal }) {
    if (select.width > 0) this.zoom(posToVal(select.left, "x") * 1000, posToVal(select.left + select.width, "x") * 1000);
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") this.moveTo(null);
    if (!by || !this.chart) return;
    event.preventDefault();
    const shown = this.chart.cursor.left >= 0 ? this.chart.cursor.idx : null;
    const from = shown === null ? (by > 0 ? -1 : this.steps + 1) : shown;
    this.moveTo(Math.min(Math.max(from + by, 0), this.steps));
  }

  moveTo(place) {
    this.byKey = place !== null;
    const left = place === null ? -10 : this.chart.valToPos((this.start + place * this.step) / 1000, "x");
    this.chart?.setCursor({ left, top: place === null ? -10 : 0 });
    this.byKey = false;
  }

  /** Show the values at the crosshair: those nearest to the pointer, the highest on top. */
  point() {
    const { idx, left, top } = this.chart.cursor;
    this.tip.hidden = left < 0 || idx === null || idx === undefined;
    if (this.tip.hidden) return;
    const there = this.series
      .map((one, index) => ({ one, index, value: one.hidden ? undefined : one.values[idx] }))
      .filter(({ value }) => value !== undefined);
    const height = ({ value }) => (Number.isFinite(value) ? this.chart.valToPos(value, "y") : 0);
    const nearest = this.byKey ? there : [...there].sort((a, b) => Math.abs(height(a) - top) - Math.abs(height(b) - top));
    const shown = nearest.slice(0, VALUES).sort((a, b) => b.value - a.value || a.index - b.index);
    const near = !this.byKey && shown.length > 1 ? nearest[0].index : null;
    this.tip.replaceChildren(...[
      make("p", { class: "tip-time" }, inWords(this.start + idx * this.step)),
      ...shown.map(({ one, index, value }) => make(
        "p",
        { class: "tip-line", "data-near": index === near },
        make("span", { class: "swatch", "data-hue": index % HUES }),
        make("span", { class: "tip-name" }, labelsOf(this.shortened(one.metric))),
        make("b", {}, valueText(value)),
      )),
      there.length > shown.length && make("p", { class: "tip-more" }, `and ${there.length - shown.length} more`),
      there.length === 0 && make("p", { class: "tip-more" }, "no points"),
    ].filter(Boolean));
    this.placeTip(left + this.chart.over.offsetLeft);
  }

  /** Beside the crosshair, where there is more room; a narrow plot has none, and the tip covers it. */
  placeTip(x) {
    const [width, wide] = [this.plot.clientWidth, this.tip.offsetWidth];
    const place = x > width / 2 ? x - 12 - wide : x + 12;
    this.tip.style.left = `${Math.max(4, Math.min(place, width - wide - 4))}px`;
  }

  /** Beside the crosshair there is room for the labels by which the lines differ. */
  shortened(metric) {
    return Object.fromEntries(Object.entries(metric).filter(([name]) => !this.differing.size || this.differing.has(name)));
  }
}

function differing(series) {
  const names = new Set(series.flatMap(({ metric }) => Object.keys(metric)));
  return new Set([...names].filter((name) => new Set(series.map(({ metric }) => metric[name])).size > 1));
}

function numberOf(text) {
  return text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text);
}

/** Zero belongs to the picture if it is near; a flat line is in the middle. */
function aroundValues(_, low, high) {
  if (low === null || high === null) return [0, 1];
  let [from, to] = [low, high];
  if (from > 0 && from < to * 0.5) from = 0;
  if (to < 0 && to > from * 0.5) to = 0;
  const room = from === to ? Math.abs(from) * 0.1 || 1 : (to - from) * 0.05;
  return [from === 0 && low >= 0 ? 0 : from - room, to === 0 && high <= 0 ? 0 : to + room];
}

/** A point with no neighbour has no line to be seen by. */
function alone(plot, index) {
  const values = plot.data[index];
  const [from, to] = plot.series[0].idxs;
  const found = [];
  for (let place = from; place <= to; place += 1) {
    const joined = (values[place - 1] ?? null) !== null || (values[place + 1] ?? null) !== null;
    if ((values[place] ?? null) !== null && !joined) found.push(place);
  }
  return found.length ? found : null;
}

function inWords(time) {
  return new Date(time).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
