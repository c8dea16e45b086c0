// The table of ranks; cells change only when their text does.

import { find, make, setText } from "./dom.js";
import { count, duration, percent, rate } from "./format.js";

const COLUMNS = [
  ["Rank", "rank", rank => String(rank.rank)],
  ["State", "state", rank => rank.state],
  ["For", "", (rank, now) => rank.since === null ? "–" : duration(Math.max(0, now - rank.since))],
  ["Running", "number", rank => count(rank.running)],
  ["Waiting", "number", rank => count(rank.waiting)],
  ["KV cache", "meter", rank => percent(rank.kv_usage)],
  ["Prefix hits", "number", rank => percent(rank.prefix_hit_rate)],
  ["Prompt tok/s", "number", rank => rate(rank.prompt_tokens_per_s)],
  ["Tokens/s", "number strong", rank => rate(rank.generated_tokens_per_s)],
  ["Report age", "number", rank => rank.age_s === null ? "–" : duration(rank.age_s)],
  ["Host", "host", rank => rank.host],
];
const PHASES = {
  starting: "starting", loading_weights: "loading weights", fitting_cache: "fitting the cache", warming_up: "warming up",
};

export class RankTable {
  constructor() {
    find("ranks-head").replaceChildren(...COLUMNS.map(([title, kind]) => make("th", { scope: "col", className: kind }, title)));
    this.body = find("ranks");
    this.rows = new Map();
  }

  show(ranks, now) {
    const numbers = new Set(ranks.map(rank => rank.rank));
    for (const [number, row] of this.rows) {
      if (numbers.has(number)) continue;
      row.element.remove();
      this.rows.delete(number);
    }
    for (const rank of ranks) {
      const row = this.rows.get(rank.rank) ?? this.add(rank.rank);
      this.fill(row, rank, now);
    }
  }

  add(number) {
    const cells = COLUMNS.map(([title, kind]) => make(kind === "rank" ? "th" : "td", { className: kind, "data-label": title }));
    cells[0].scope = "row";
    const badge = make("span", { className: "badge" });
    const phase = make("span", { className: "phase" });
    const progress = make("progress", { max: 100, hidden: true });
    cells[1].append(badge, phase, progress);
    const meter = make("meter", { min: 0, max: 1, high: 0.9, "aria-hidden": "true" });
    const usage = make("span");
    cells[5].append(meter, usage);
    const row = { element: make("tr", {}, ...cells), cells, badge, phase, progress, meter, usage };
    this.rows.set(number, row);
    const next = [...this.rows.keys()].filter(each => each > number).sort((a, b) => a - b)[0];
    this.body.insertBefore(row.element, next === undefined ? null : this.rows.get(next).element);
    return row;
  }

  fill(row, rank, now) {
    row.element.dataset.state = rank.state;
    row.element.dataset.rank = rank.rank;
    COLUMNS.forEach(([, kind, text], index) => {
      if (kind === "state") return;
      setText(kind === "meter" ? row.usage : row.cells[index], text(rank, now));
    });
    row.badge.dataset.state = rank.state;
    setText(row.badge, rank.state);
    const loading = rank.state === "joining";
    setText(row.phase, loading ? PHASES[rank.phase] ?? "" : rank.state === "ready" ? "" : rank.reason);
    row.progress.hidden = !loading || rank.percent === null;
    if (!row.progress.hidden) row.progress.value = rank.percent;
    row.meter.hidden = rank.kv_usage === null;
    row.meter.value = rank.kv_usage ?? 0;
  }
}
