// The live view: one request a second while somebody looks.

import { ApiError, request } from "./api.js";
import { find, make, setText } from "./dom.js";
import { count, duration, many, percent, rate } from "./format.js";
import { Plot } from "./plot.js";
import { RankTable } from "./ranks.js";
import { Series } from "./series.js";
import { load, save } from "./storage.js";

const EVERY_MS = 1000;
const MOST_LINES = 8; // there are as many colours
const MOST_HAPPENINGS = 50;

const sum = (ranks, field) => ranks.reduce((total, rank) => total + (rank[field] ?? 0), 0);
const known = (ranks, field) => ranks.map(rank => rank[field]).filter(value => value !== null);
const mean = values => values.length ? values.reduce((total, value) => total + value, 0) / values.length : null;
const total = (ranks, field) => known(ranks, field).length ? sum(ranks, field) : null;

const TILES = [
  ["Ranks ready", view => `${view.num_ready}/${view.num_ranks}`, view => many(view.gateways.length, "gateway")],
  ["Tokens/s", ({ ranks }) => rate(total(ranks, "generated_tokens_per_s")), () => "generated, last 10 s"],
  ["Prompt tokens/s", ({ ranks }) => rate(total(ranks, "prompt_tokens_per_s")), () => "read, last 10 s"],
  ["Running requests", ({ ranks }) => count(sum(ranks, "running")), ({ ranks }) => `${count(sum(ranks, "waiting"))} waiting`],
  ["KV cache in use", ({ ranks }) => percent(mean(known(ranks, "kv_usage"))), ({ ranks }) => `fullest rank ${percent(Math.max(0, ...known(ranks, "kv_usage")))}`],
  ["Prefix cache hits", ({ ranks }) => percent(mean(known(ranks, "prefix_hit_rate"))), () => "of prompt tokens"],
];

export class Deployment {
  constructor(onunauthenticated) {
    this.onunauthenticated = onunauthenticated;
    this.series = new Series();
    this.table = new RankTable();
    this.states = new Map();
    this.windowS = load("muster.window", 300);
    this.tiles = TILES.map(([label]) => {
      const [value, note] = [make("strong"), make("small")];
      find("tiles").append(make("div", { className: "tile" }, make("span", {}, label), value, note));
      return { value, note };
    });
    this.plots = {
      generated: new Plot({ title: "Tokens generated per second", format: rate, floor: 10 }),
      prompt: new Plot({ title: "Prompt tokens read per second", format: rate, floor: 10 }),
      requests: new Plot({ title: "Requests", format: count, floor: 4 }),
      kv: new Plot({ title: "KV cache in use", format: percent, top: 1 }),
    };
    find("plots").append(...Object.values(this.plots).map(plot => plot.element));
    for (const button of document.querySelectorAll("[data-window-s]")) button.addEventListener("click", () => this.choose(button));
    document.addEventListener("visibilitychange", () => this.wake());
    this.mark();
  }

  setShown(shown) {
    this.shown = shown;
    this.wake();
  }

  /** After a new key. */
  retry() {
    this.refused = false;
    this.wake();
  }

  themeChanged() {
    for (const plot of Object.values(this.plots)) plot.forget();
    if (this.view && this.shown) this.draw(this.view);
  }

  choose(button) {
    this.windowS = Number(button.dataset.windowS);
    save("muster.window", this.windowS);
    this.mark();
    if (this.view) this.draw(this.view);
  }

  mark() {
    for (const button of document.querySelectorAll("[data-window-s]"))
      button.setAttribute("aria-pressed", Number(button.dataset.windowS) === this.windowS);
  }

  wake() {
    if (this.isWatched && !this.watching) this.watching = this.watch().finally(() => { this.watching = null; });
  }

  get isWatched() {
    return this.shown && !document.hidden && !this.refused;
  }

  async watch() {
    while (this.isWatched) {
      await this.look();
      await new Promise(resolve => setTimeout(resolve, EVERY_MS));
    }
  }

  async look() {
    try {
      const view = await (await request(`deployment?history_after=${this.series.last}`)).json();
      this.reachedAt = Date.now();
      this.show(view);
    } catch (error) {
      this.failed(error);
    }
  }

  failed(error) {
    if (error instanceof ApiError && error.status === 401) {
      this.refused = true;
      this.onunauthenticated(error.message);
    }
    const since = this.reachedAt ? ` What is shown is ${duration((Date.now() - this.reachedAt) / 1000)} old.` : "";
    this.notice(`${error.message}${since}`);
  }

  notice(text) {
    find("deployment-notice").hidden = !text;
    setText(find("deployment-notice"), text);
    find("deployment").classList.toggle("old", Boolean(text));
  }

  show(view) {
    this.view = view;
    this.notice(view.head_connected ? "" : "The gateway has no contact with the head. Serving goes on; what is shown here stands still.");
    const { model } = view;
    setText(find("deployment-title"), model?.name ?? "Deployment");
    setText(find("deployment-facts"), [
      model && `${model.architecture}, ${model.dtype}, context of ${count(model.max_model_len)} tokens`,
      view.version && `Muster ${view.version}`,
    ].filter(Boolean).join(" · ") || "The model is loading.");
    TILES.forEach(([, value, note], index) => {
      setText(this.tiles[index].value, value(view));
      setText(this.tiles[index].note, note(view));
    });
    this.table.show(view.ranks, view.now);
    this.noteChanges(view);
    this.series.append(view.history);
    this.draw(view);
  }

  draw({ ranks }) {
    const { at } = this.series;
    const { generated, prompt, requests, kv } = this.plots;
    const waiting = sum(ranks, "waiting");
    generated.draw(at, this.lines("generated_tokens_per_s"), this.windowS, rate(this.series.total.generated_tokens_per_s.at(-1)));
    prompt.draw(at, this.lines("prompt_tokens_per_s"), this.windowS, rate(this.series.total.prompt_tokens_per_s.at(-1)));
    requests.draw(at, [
      { label: "running", colour: "--plot-0", fill: true, values: this.series.total.running },
      { label: "waiting", colour: "--plot-3", values: this.series.total.waiting },
    ], this.windowS, `${count(sum(ranks, "running"))} running, ${count(waiting)} waiting`);
    kv.draw(at, this.lines("kv_usage", "mean"), this.windowS, percent(mean(known(ranks, "kv_usage"))));
  }

  /** The total, and the ranks while they can be told apart. */
  lines(field, word = "all") {
    const lines = [{ label: word, colour: "--plot-0", fill: true, values: this.series.total[field] }];
    if (this.series.ranks.size < 2 || this.series.ranks.size > MOST_LINES) return lines;
    const ranks = [...this.series.ranks].sort(([a], [b]) => a - b);
    return [...lines, ...ranks.map(([rank, columns], index) => ({ label: `rank ${rank}`, colour: `--plot-${index + 1}`, values: columns[field] }))];
  }

  noteChanges(view) {
    const list = find("happenings");
    const add = (text, state) => {
      list.querySelector(".muted")?.remove();
      const at = new Date(view.now * 1000).toLocaleTimeString("en-GB");
      list.prepend(make("li", { "data-state": state }, make("time", {}, at), make("span", {}, text)));
      while (list.children.length > MOST_HAPPENINGS) list.lastElementChild.remove();
    };
    for (const { rank, state, reason } of view.ranks) {
      const before = this.states.get(rank);
      if (before !== undefined && before !== state) add(`Rank ${rank}: ${before} → ${state}${reason && state !== "ready" ? ` (${reason})` : ""}`, state);
      this.states.set(rank, state);
    }
    const [was, is] = [this.states.get("head"), view.head_connected];
    if (was !== undefined && was !== is) add(is ? "The head is back." : "The head is gone.", is ? "ready" : "lost");
    this.states.set("head", is);
  }
}
