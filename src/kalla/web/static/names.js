// Names for completion: metrics, labels and values, asked of the API and kept for a short while.

const KEPT_MS = 60000;
const MOST = 100000; // metric names, labels or values; a list that is cut must be longer than what people have

export class Names {
  constructor() {
    this.kept = new Map(); // address -> {at, found}
    this.asking = null;
    this.metrics = null; // the question for metric names that is under way, shared by who needs them
  }

  /** What fits a place, if it need not be asked for. */
  known(place) {
    if (place.kind === "duration") return [];
    const kept = this.kept.get(addressOf(place));
    return kept && Date.now() - kept.at < KEPT_MS ? kept.found : null;
  }

  /** What fits a place, or null if the API has no answer. A newer question ends an older one. */
  async find(place) {
    this.leave();
    if (place.kind === "expression") {
      this.metrics ||= this.findMetrics(place).finally(() => { this.metrics = null; });
      return this.metrics;
    }
    this.asking = new AbortController();
    const found = await get(addressOf(place), this.asking.signal);
    if (!found) return null;
    if (place.kind === "value") return this.keep(place, found.map((text) => ({ kind: "value", text, hint: " " })));
    return this.keep(place, found.filter((text) => text !== "__name__").map((text) => ({ kind: "label", text })));
  }

  async findMetrics(place) {
    const metadata = `/api/v1/metadata?limit_per_metric=1&limit=${MOST}`;
    const [found, metrics] = await Promise.all([get(addressOf(place)), get(metadata)]);
    if (!found) return null;
    const known = new Map(Object.entries(metrics || {}));
    return this.keep(place, found.map((text) => {
      const [about] = known.get(text) || [];
      return { kind: "metric", text, hint: about && about.type, help: about && about.help };
    }));
  }

  keep(place, found) {
    if (found.length) this.kept.set(addressOf(place), { at: Date.now(), found }); // what is missing may come
    return found;
  }

  /** Metric names, known before the first letter is typed; null if the API has no answer. */
  async metricNames() {
    const place = { kind: "expression" };
    return this.known(place) || this.find(place);
  }

  leave() {
    if (this.asking) this.asking.abort();
    this.asking = null;
  }
}

function addressOf({ kind, label, selector }) {
  const values = new URLSearchParams({ limit: MOST });
  if (selector) values.append("match[]", selector);
  const path = kind === "expression" ? "label/__name__/values" : kind === "value" ? `label/${escaped(label)}/values` : "labels";
  return `/api/v1/${path}?${values}`;
}

/** Names that are not of letters, digits and _ travel in Prometheus' U__ escaping. */
function escaped(name) {
  if (/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) return name;
  const parts = [...name].map((one) => {
    if (one === "_") return "__";
    return /[A-Za-z0-9]/.test(one) ? one : `_${one.codePointAt(0).toString(16)}_`;
  });
  return `U__${parts.join("")}`;
}

// A completion that fails is one that is not offered: the query itself will say what is wrong.
async function get(address, signal) {
  try {
    const answer = await fetch(address, { headers: { Accept: "application/json" }, signal });
    return answer.ok ? (await answer.json()).data : null;
  } catch {
    return null;
  }
}
