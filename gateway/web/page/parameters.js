// What goes with every message, kept in this browser.

import { find, make } from "./dom.js";
import { load, save } from "./storage.js";

const KEPT = "muster.parameters";
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const WORDS = { temperature: "temperature", top_p: "top p", max_tokens: "max tokens", seed: "seed", rank: "rank" };

export class Parameters {
  constructor() {
    this.panel = find("parameters");
    this.form = find("parameters-form");
    this.button = find("parameters-button");
    this.wanted = load(KEPT, {});
    for (const name of ["system", ...NUMBERS]) this.form.elements[name].value = this.wanted[name] ?? "";
    this.form.addEventListener("input", () => this.changed());
    this.form.addEventListener("submit", event => event.preventDefault());
    this.form.addEventListener("reset", () => setTimeout(() => this.changed()));
    this.button.addEventListener("click", () => this.toggle());
    find("parameters-close").addEventListener("click", () => this.toggle(false));
    this.describe();
  }

  get isOpen() {
    return !this.panel.hidden;
  }

  toggle(open = !this.isOpen) {
    if (open === this.isOpen) return;
    this.panel.hidden = !open;
    this.button.setAttribute("aria-expanded", open);
    if (open) this.form.elements.system.focus();
    else this.button.focus();
  }

  /** What there is to choose from; the choice is kept while it exists. */
  offer(models, ranks) {
    const { model, rank } = this.form.elements;
    fill(model, models.map(name => [name, name]), this.wanted.model);
    fill(rank, [["", "the gateway chooses"], ...ranks.map(number => [String(number), `rank ${number}`])], this.wanted.rank);
    this.describe();
  }

  /** Fields of the request's body. */
  body() {
    const body = { model: this.form.elements.model.value || undefined };
    for (const name of NUMBERS) {
      const text = this.form.elements[name].value;
      if (text !== "") body[name] = Number(text);
    }
    return body;
  }

  headers() {
    const rank = this.form.elements.rank.value;
    return rank === "" ? {} : { "X-data-parallel-rank": rank };
  }

  get system() {
    return this.form.elements.system.value.trim();
  }

  /** The first field whose value no server takes, shown to the person; true when all are good. */
  report() {
    if (this.form.checkValidity()) return true;
    this.toggle(true);
    return this.form.reportValidity();
  }

  changed() {
    this.wanted = Object.fromEntries([...new FormData(this.form)].filter(([, value]) => value !== ""));
    save(KEPT, this.wanted);
    this.describe();
  }

  describe() {
    const set = Object.keys(WORDS).filter(name => this.form.elements[name].value !== "");
    const parts = set.map(name => `${WORDS[name]} ${this.form.elements[name].value}`);
    if (this.system) parts.push("system prompt");
    find("parameters-summary").textContent = parts.length ? parts.join(" · ") : "Parameters";
  }
}

function fill(select, options, wanted) {
  const known = [...select.options].map(option => option.value);
  if (known.length === options.length && options.every(([value], index) => value === known[index])) return;
  const chosen = select.value || wanted;
  select.replaceChildren(...options.map(([value, text]) => make("option", { value, textContent: text })));
  select.value = options.some(([value]) => value === chosen) ? chosen : options[0]?.[0] ?? "";
}
