// The conversations of this browser: an index, and each under a key of its own, so that saving one costs one.

import { load, remove, save } from "./storage.js";
import { toast } from "./dom.js";

const INDEX = "muster.conversations";
const ONE = "muster.conversation.";
const LONGEST_TITLE = 60;

/** A conversation is {id, title, updated, messages}; a message {role, content, …}. */
export class Conversations {
  /** `onchange` is called with the id when another tab changed one; `isRunning` says that this tab is writing it. */
  constructor(onchange, isRunning) {
    this.onchange = onchange;
    this.isRunning = isRunning;
    this.open = new Map(); // by id: one object per conversation, or two views of it would overwrite each other
    this.toldFull = false;
    addEventListener("storage", event => {
      if (event.key === INDEX) this.onchange();
      if (event.key?.startsWith(ONE)) this.changedElsewhere(event.key.slice(ONE.length));
    });
  }

  /** [{id, title, updated}], newest first. */
  list() {
    const entries = load(INDEX, []);
    return Array.isArray(entries) ? entries : [];
  }

  create() {
    const id = `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`;
    const conversation = { id, title: "", updated: Date.now(), messages: [] };
    this.open.set(id, conversation);
    return conversation;
  }

  get(id) {
    if (!this.open.has(id)) {
      const kept = load(ONE + id, null);
      if (!kept || !Array.isArray(kept.messages)) return null;
      this.open.set(id, kept);
    }
    return this.open.get(id);
  }

  save(conversation) {
    conversation.updated = Date.now();
    conversation.title ||= title(conversation);
    const entries = this.list().filter(entry => entry.id !== conversation.id);
    entries.unshift({ id: conversation.id, title: conversation.title, updated: conversation.updated });
    const fits = save(ONE + conversation.id, conversation) && save(INDEX, entries);
    if (!fits && !this.toldFull) toast("This browser's storage is full: new messages are lost with this tab. Delete some chats.");
    this.toldFull = !fits;
    this.onchange();
  }

  /** Returns what undoes it. */
  delete(id) {
    const conversation = this.get(id);
    save(INDEX, this.list().filter(entry => entry.id !== id));
    remove(ONE + id);
    this.open.delete(id);
    this.onchange();
    return () => {
      if (!conversation) return;
      this.open.set(id, conversation);
      this.save(conversation);
    };
  }

  /** Everything, for a file. */
  exported() {
    return JSON.stringify(this.list().map(entry => this.get(entry.id)).filter(Boolean), null, 2);
  }

  changedElsewhere(id) {
    if (this.isRunning(id)) return;
    this.open.delete(id);
    this.onchange(id);
  }
}

function title(conversation) {
  const first = conversation.messages.find(message => message.role === "user")?.content ?? "";
  const line = first.trim().replace(/\s+/g, " ");
  return line.length > LONGEST_TITLE ? `${line.slice(0, LONGEST_TITLE - 1)}…` : line || "New chat";
}
