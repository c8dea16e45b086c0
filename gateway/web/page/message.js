// One message on the screen.

import { copyText, icon, iconButton, make, setText } from "./dom.js";
import { count, duration, many, rate } from "./format.js";
import { Markdown } from "./markdown.js";

const REASONS = { length: "cut at the longest answer allowed", abort: "aborted by the server" };

export class MessageView {
  /** `actions`: retry(), edit(), each or null. */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.text = make("div", { className: "text" });
    this.end = make("div", { className: "message-end" });
    this.element = make("article", {
      className: `message ${message.role}`, "aria-label": message.role === "user" ? "You" : "Answer",
    }, this.text, this.end);
    if (message.role === "assistant") {
      this.markdown = new Markdown(this.text);
      this.thoughts = make("div", { className: "thoughts-text" });
      this.thoughtsTitle = make("summary", {}, "Thoughts");
      this.thoughtsBox = make("details", { className: "thoughts", hidden: true }, this.thoughtsTitle, this.thoughts);
      this.text.before(this.thoughtsBox);
      this.thinking = new Markdown(this.thoughts);
    }
  }

  /** Shows the message as it is now; `running`: more may come. */
  update(running) {
    const { message } = this;
    this.element.classList.toggle("running", running);
    this.element.setAttribute("aria-busy", running);
    if (message.role === "user") {
      setText(this.text, message.content);
    } else {
      this.markdown.update(message.content);
      this.thoughtsBox.hidden = !message.reasoning;
      if (message.reasoning) {
        this.thinking.update(message.reasoning);
        setText(this.thoughtsTitle, running && !message.content ? "Thinking…" : "Thoughts");
      }
    }
    if (!running) this.end.replaceChildren(...this.ending());
  }

  ending() {
    const { message, actions } = this;
    const parts = [];
    if (message.error) parts.push(errorBox(message.error, actions.retry));
    const facts = factsOf(message);
    if (facts) parts.push(make("span", { className: "facts" }, facts));
    const buttons = make("span", { className: "message-actions" });
    if (message.content) buttons.append(iconButton("copy", "Copy", () => copyText(message.content)));
    if (actions.edit) buttons.append(iconButton("edit", "Edit and send again", actions.edit));
    if (actions.retry && !message.error) buttons.append(iconButton("retry", "Answer again", actions.retry));
    parts.push(buttons);
    return parts;
  }
}

function factsOf(message) {
  const { usage, timing } = message;
  const facts = [];
  if (message.stopped) facts.push("stopped");
  if (REASONS[message.finish_reason]) facts.push(REASONS[message.finish_reason]);
  if (usage) facts.push(many(usage.completion_tokens, "token"));
  if (usage && timing?.answering_s > 0 && usage.completion_tokens > 1)
    facts.push(`${rate((usage.completion_tokens - 1) / timing.answering_s)} tokens/s`);
  if (timing?.first_s) facts.push(`first after ${duration(timing.first_s)}`);
  if (usage?.prompt_tokens_details?.cached_tokens) facts.push(`${count(usage.prompt_tokens_details.cached_tokens)} of ${count(usage.prompt_tokens)} prompt tokens cached`);
  return facts.join(" · ");
}

function errorBox(error, retry) {
  const details = [
    error.status ? `HTTP ${error.status}` : null,
    error.code,
    error.param ? `field ${error.param}` : null,
    error.requestId ? `request ${error.requestId}` : null,
  ].filter(Boolean).join(" · ");
  const wait = error.retryAfterS ? ` Try again in ${duration(error.retryAfterS)}.` : "";
  return make("div", { className: "error", role: "alert" },
    icon("warning"),
    make("div", {}, make("p", {}, error.message + wait), details ? make("p", { className: "details" }, details) : null),
    retry ? make("button", { type: "button", className: "button", textContent: "Try again", onclick: retry }) : null);
}
