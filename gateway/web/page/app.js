// Ties the page together: views, keys, theme, the API key and the health in the bar.

import { apiKey, ApiError, isKeyKept, request, setApiKey } from "./api.js";
import { Chat } from "./chat.js";
import { Deployment } from "./deployment.js";
import { find, setText } from "./dom.js";
import { Parameters } from "./parameters.js";

const HEALTH_EVERY_MS = 3000;
const THEMES = ["automatic", "light", "dark"];

const parameters = new Parameters();
const chat = new Chat(parameters, askForKey);
const deployment = new Deployment(askForKey);
let afterKey = null;

// --- views

const shown = () => location.hash === "#/deployment" ? "deployment" : "chat";

function route() {
  const view = shown();
  for (const name of ["chat", "deployment"]) {
    find(name).hidden = name !== view;
    if (name === view) find(`${name}-tab`).setAttribute("aria-current", "page");
    else find(`${name}-tab`).removeAttribute("aria-current");
  }
  document.body.dataset.view = view;
  document.title = view === "chat" ? "Chat · Muster" : "Deployment · Muster";
  toggleMenu(false);
  deployment.setShown(view === "deployment");
  if (view === "chat" && matchMedia("(pointer: fine)").matches) chat.focus();
}

const go = view => { location.hash = `#/${view}`; };

function toggleMenu(open = find("sidebar").dataset.open !== "true") {
  find("sidebar").dataset.open = open;
  find("menu-button").setAttribute("aria-expanded", open);
  find("scrim").hidden = !open;
}

// --- the key

function askForKey(reason = "", then = null) {
  afterKey = then;
  if (reason) setText(find("key-reason"), reason);
  find("key-input").value = apiKey();
  find("key-keep").checked = isKeyKept();
  find("key-forget").disabled = !apiKey();
  if (!find("key-dialog").open) find("key-dialog").showModal();
}

function closeKey(key, keep) {
  if (key !== undefined) setApiKey(key, keep);
  find("key-dialog").close();
  const then = key ? afterKey : null;
  afterKey = null;
  loadModels();
  deployment.retry();
  then?.();
}

// --- what the bar says

async function watchHealth() {
  for (;;) {
    if (!document.hidden) await lookAtHealth();
    await new Promise(resolve => setTimeout(resolve, HEALTH_EVERY_MS));
  }
}

async function lookAtHealth() {
  let state = "unreachable";
  let [count, word] = ["–", "unreachable"];
  try {
    // 503 with a body is how a gateway says that it is not ready: no failure of the request.
    const response = await fetch(new URL("readyz", document.baseURI), { cache: "no-store" });
    const body = await response.json();
    state = body.status;
    [count, word] = [`${body.num_ready}/${body.num_ranks}`, { loading: "loading", draining: "stopping" }[state] ?? "ready"];
    if (state === "ready" && body.num_ready < body.num_ranks) state = "partly";
    offered.ranks = body.ranks.map(rank => rank.rank);
    parameters.offer(offered.models, offered.ranks);
    if (state !== "loading" && !offered.models.length && !find("key-dialog").open) await loadModels();
  } catch {
    // said by the words
  }
  find("health").dataset.state = state;
  setText(find("health-count"), count);
  setText(find("health-word"), word);
  find("health").setAttribute("aria-label", `Ranks: ${count} ${word}`);
}

const offered = { models: [], ranks: [] };

async function loadModels() {
  try {
    const { data } = await (await request("v1/models")).json();
    offered.models = data.map(card => card.id);
    parameters.offer(offered.models, offered.ranks);
    if (offered.models.length) chat.nameModel(offered.models[0]);
  } catch (error) {
    if (error instanceof ApiError && error.status === 401 && !apiKey() && !loadModels.asked) {
      loadModels.asked = true; // once: whoever cancels wants to look around
      askForKey(error.message);
    }
  }
}

// --- keys and buttons

const KEYS = {
  "/": () => { go("chat"); chat.focus(); },
  n: () => { go("chat"); chat.startNew(); },
  p: () => { go("chat"); parameters.toggle(); },
  c: () => go("chat"),
  d: () => go("deployment"),
  t: nextTheme,
  "?": () => find("help-dialog").showModal(),
};

function onKey(event) {
  if (event.key === "Escape") {
    if (document.querySelector("dialog[open]")) return;
    if (parameters.isOpen) parameters.toggle(false);
    else if (find("sidebar").dataset.open === "true") toggleMenu(false);
    else if (shown() === "chat") chat.stop();
    return;
  }
  const typing = event.target.closest?.("input, textarea, select, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
}

function nextTheme() {
  const { theme = "automatic" } = document.documentElement.dataset;
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  if (next === "automatic") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("muster.theme");
  } else {
    document.documentElement.dataset.theme = next;
    localStorage.setItem("muster.theme", next);
  }
  find("theme-button").setAttribute("aria-label", `Theme: ${next}`);
  deployment.themeChanged();
}

function listen() {
  addEventListener("hashchange", route);
  addEventListener("keydown", onKey);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => deployment.themeChanged());
  find("skip").addEventListener("click", () => setTimeout(() => chat.focus()));
  find("menu-button").addEventListener("click", () => toggleMenu());
  find("scrim").addEventListener("click", () => toggleMenu(false));
  find("theme-button").addEventListener("click", nextTheme);
  find("help-button").addEventListener("click", () => find("help-dialog").showModal());
  find("key-button").addEventListener("click", () => askForKey());
  find("key-cancel").addEventListener("click", () => find("key-dialog").close());
  find("key-forget").addEventListener("click", () => closeKey("", false));
  find("key-form").addEventListener("submit", event => {
    event.preventDefault();
    closeKey(find("key-input").value.trim(), find("key-keep").checked);
  });
  chat.onnavigate = () => toggleMenu(false);
}

find("theme-button").setAttribute("aria-label", `Theme: ${document.documentElement.dataset.theme ?? "automatic"}`);
listen();
route();
loadModels();
watchHealth();
