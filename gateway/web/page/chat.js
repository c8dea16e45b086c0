// The chat: the list of conversations, the one that is shown, and the answers in the making.

import { Answer, promptOf } from "./answer.js";
import { Conversations } from "./conversations.js";
import { find, iconButton, make, toast } from "./dom.js";
import { MessageView } from "./message.js";
import { load, save } from "./storage.js";

const CURRENT = "muster.conversation";
const IDEAS = [
  "What is gravity?", "Write a haiku about the sea.", "Explain a hash table to a child.", "Give me three names for a cat.",
];
const NEAR_END_PX = 80;

export class Chat {
  constructor(parameters, onunauthenticated) {
    this.parameters = parameters;
    this.onunauthenticated = onunauthenticated;
    this.answers = new Map(); // running, by conversation id
    this.views = [];
    this.conversations = new Conversations(id => this.listChanged(id), id => this.answers.has(id));
    this.log = find("log");
    this.input = find("message");
    this.current = this.conversations.get(load(CURRENT, "")) ?? this.conversations.create();
    this.listen();
    this.showList();
    this.show(this.current);
  }

  listen() {
    find("composer").addEventListener("submit", event => { event.preventDefault(); this.send(); });
    find("stop").addEventListener("click", () => this.stop());
    find("new-button").addEventListener("click", () => this.startNew());
    find("export-button").addEventListener("click", () => this.export());
    find("clear-button").addEventListener("click", () => this.deleteAll());
    find("to-end").addEventListener("click", () => this.scrollToEnd());
    this.log.addEventListener("scroll", () => { find("to-end").hidden = this.isNearEnd(); }, { passive: true });
    this.input.addEventListener("input", () => this.fit());
    this.input.addEventListener("keydown", event => {
      // An input method's Enter takes its word; it sends nothing.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    addEventListener("beforeunload", () => {
      for (const id of this.answers.keys()) this.conversations.save(this.conversations.get(id));
    });
  }

  get isAnswering() {
    return this.answers.has(this.current.id);
  }

  /** What a person calls the model now. */
  nameModel(name) {
    const title = this.log.querySelector(".welcome h1");
    if (title) title.textContent = name;
    this.modelName = name;
    this.input.placeholder = `Ask ${name}…`;
  }

  focus() {
    this.input.focus();
  }

  startNew() {
    if (this.current.messages.length) this.show(this.conversations.create());
    this.onnavigate?.();
    this.focus();
  }

  show(conversation) {
    this.current = conversation;
    save(CURRENT, conversation.id);
    this.views = [];
    this.log.replaceChildren();
    if (!conversation.messages.length) this.log.append(this.welcome());
    conversation.messages.forEach(message => this.append(message));
    this.showList();
    this.showState();
    this.scrollToEnd();
  }

  welcome() {
    const ideas = IDEAS.map(text => make("button", {
      type: "button", className: "idea", textContent: text, onclick: () => { this.input.value = text; this.send(); },
    }));
    return make("div", { className: "welcome" },
      make("h1", {}, this.modelName ?? "Hello"),
      make("p", { className: "muted" }, "Ask anything, or begin with one of these."),
      make("div", { className: "ideas" }, ...ideas));
  }

  append(message) {
    this.log.querySelector(".welcome")?.remove();
    const isLast = () => this.current.messages.at(-1) === message;
    const view = new MessageView(message, {
      retry: message.role === "assistant" ? () => this.retry(message) : null,
      edit: message.role === "user" ? () => this.edit(message) : null,
    });
    this.views.push(view);
    this.log.append(view.element);
    view.update(isLast() && this.isAnswering);
  }

  send() {
    const text = this.input.value.trim();
    if (!text || this.isAnswering || !this.parameters.report()) return;
    this.input.value = "";
    this.fit();
    this.add({ role: "user", content: text });
    this.answer();
  }

  retry(message) {
    if (this.isAnswering) return;
    this.cutFrom(message);
    this.answer();
  }

  edit(message) {
    if (this.isAnswering) return;
    this.cutFrom(message);
    this.show(this.current);
    this.input.value = message.content;
    this.fit();
    this.focus();
  }

  cutFrom(message) {
    const index = this.current.messages.indexOf(message);
    if (index < 0) return;
    this.current.messages.length = index;
    for (const view of this.views.splice(index)) view.element.remove();
    this.conversations.save(this.current);
  }

  add(message) {
    this.current.messages.push(message);
    this.append(message);
    this.conversations.save(this.current);
    this.scrollToEnd();
  }

  answer() {
    const conversation = this.current;
    const body = { ...this.parameters.body(), messages: promptOf(conversation.messages, this.parameters.system) };
    const message = { role: "assistant", content: "" };
    const answer = new Answer(message, {
      onchange: () => this.refresh(conversation, message, true),
      onsave: () => this.conversations.save(conversation),
      onend: unauthenticated => {
        this.answers.delete(conversation.id);
        this.conversations.save(conversation);
        this.refresh(conversation, message, false);
        this.showState();
        if (unauthenticated) this.onunauthenticated(message.error.message, () => this.retry(message));
      },
    });
    this.answers.set(conversation.id, answer);
    this.add(message);
    this.showState();
    answer.run(body, this.parameters.headers());
  }

  stop() {
    this.answers.get(this.current.id)?.stop();
    this.focus();
  }

  refresh(conversation, message, running) {
    if (conversation !== this.current) return;
    const follow = this.isNearEnd();
    this.views.find(view => view.message === message)?.update(running);
    if (follow) this.scrollToEnd();
  }

  showState() {
    const running = this.isAnswering;
    find("stop").hidden = !running;
    find("send").hidden = running;
    find("send").disabled = this.input.value.trim() === "";
    this.log.setAttribute("aria-busy", running);
  }

  /** The box is as high as its text, within limits that the style sheet sets. */
  fit() {
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight}px`;
    this.showState();
  }

  isNearEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR_END_PX;
  }

  scrollToEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }

  listChanged(changedId) {
    this.showList();
    if (changedId !== this.current.id || this.isAnswering) return;
    this.show(this.conversations.get(changedId) ?? this.conversations.create());
  }

  showList() {
    const rows = this.conversations.list().map(({ id, title, updated }) => make("li", {},
      make("button", {
        type: "button", className: "conversation", title: `${title}\n${new Date(updated).toLocaleString()}`, textContent: title,
        "aria-current": id === this.current.id ? "true" : "false", onclick: () => this.pick(id),
      }),
      iconButton("remove", `Delete “${title}”`, () => this.delete(id))));
    find("conversations").replaceChildren(...rows);
    find("clear-button").disabled = find("export-button").disabled = rows.length === 0;
  }

  pick(id) {
    const conversation = this.conversations.get(id);
    if (conversation) this.show(conversation);
    this.onnavigate?.();
    this.focus();
  }

  delete(id) {
    this.answers.get(id)?.stop();
    const undo = this.conversations.delete(id);
    if (id === this.current.id) this.show(this.conversations.create());
    toast("Deleted.", ["Undo", undo]);
  }

  deleteAll() {
    const undos = this.conversations.list().map(({ id }) => {
      this.answers.get(id)?.stop();
      return this.conversations.delete(id);
    });
    this.show(this.conversations.create());
    toast(`Deleted ${undos.length}.`, ["Undo", () => undos.reverse().forEach(undo => undo())]);
  }

  export() {
    const url = URL.createObjectURL(new Blob([this.conversations.exported()], { type: "application/json" }));
    make("a", { href: url, download: "muster-chats.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }
}
