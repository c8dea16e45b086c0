// The history on this side: what each answer adds is appended, what is older than the longest window goes.

const KEPT_S = 600;
export const FIELDS = ["generated_tokens_per_s", "prompt_tokens_per_s", "running", "waiting", "kv_usage"];

const empty = length => Object.fromEntries(FIELDS.map(field => [field, new Array(length).fill(null)]));

export class Series {
  constructor() {
    this.at = [];
    this.total = empty(0);
    this.ranks = new Map(); // by rank number
  }

  /** Where the next answer has to begin. */
  get last() {
    return this.at.at(-1) ?? 0;
  }

  /** Takes a `history` of GET /deployment over. */
  append(history) {
    // Gateways behind one port have clocks and samples of their own; times that are not later would bend the lines back.
    const first = history.at.findIndex(at => at > this.last);
    if (first < 0) return;
    const known = this.at.length;
    for (const rank of Object.keys(history.ranks)) if (!this.ranks.has(rank)) this.ranks.set(rank, empty(known));
    this.at.push(...history.at.slice(first));
    for (const [rank, columns] of [["", this.total], ...this.ranks]) {
      const told = rank === "" ? history.total : history.ranks[rank];
      const missing = new Array(this.at.length - known).fill(null);
      for (const field of FIELDS) columns[field].push(...(told ? told[field].slice(first) : missing));
    }
    this.forgetOld();
  }

  forgetOld() {
    const num = this.at.findIndex(at => at >= this.last - KEPT_S);
    if (num <= 0) return;
    this.at.splice(0, num);
    for (const columns of [this.total, ...this.ranks.values()]) for (const field of FIELDS) columns[field].splice(0, num);
  }
}
