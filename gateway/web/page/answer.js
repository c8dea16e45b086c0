// One answer in the making: from the request to its last token, in a message that grows.

import { events, request } from "./api.js";

const SAVE_EVERY_MS = 1000;

export class Answer {
  /** `onchange` once per frame at most, `onsave` now and then, so that a reload loses little; `onend` once. */
  constructor(message, { onchange, onsave, onend }) {
    this.message = message;
    this.onchange = onchange;
    this.onsave = onsave;
    this.onend = onend;
    this.abort = new AbortController();
    this.frame = 0;
    this.savedAt = performance.now();
  }

  stop() {
    this.message.stopped = true;
    this.abort.abort();
  }

  async run(body, headers) {
    const { message } = this;
    const sentAt = performance.now();
    let firstAt = 0;
    try {
      const response = await request("v1/chat/completions", {
        body: { ...body, stream: true, stream_options: { include_usage: true } }, headers, signal: this.abort.signal,
      });
      for await (const event of events(response)) {
        const grew = this.take(event);
        if (grew && !firstAt) firstAt = performance.now();
        if (grew) message.timing = timing(sentAt, firstAt, performance.now());
        this.changed();
      }
    } catch (error) {
      if (error.name !== "AbortError") message.error = told(error);
    }
    cancelAnimationFrame(this.frame);
    this.onend(message.error?.status === 401);
  }

  /** True when text came. */
  take(event) {
    const { message } = this;
    if (event.model) message.model = event.model;
    if (event.usage) message.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return false;
    if (choice.finish_reason) message.finish_reason = choice.finish_reason;
    const { content, reasoning_content: thought } = choice.delta ?? {};
    if (content) message.content += content;
    if (thought) message.reasoning = (message.reasoning ?? "") + thought;
    return Boolean(content || thought);
  }

  changed() {
    if (performance.now() - this.savedAt > SAVE_EVERY_MS) {
      this.savedAt = performance.now();
      this.onsave();
    }
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.onchange();
    });
  }
}

const timing = (sentAt, firstAt, now) => ({ first_s: (firstAt - sentAt) / 1000, answering_s: (now - firstAt) / 1000 });

function told(error) {
  const { message, status = 0, code = null, param = null, requestId = null, retryAfterS = null } = error;
  return { message: status || code ? message : message || "The page failed.", status, code, param, requestId, retryAfterS };
}

/** What the model is sent of a conversation: turns that failed without a word are left out, neighbours of one role joined. */
export function promptOf(messages, system) {
  const turns = system ? [{ role: "system", content: system }] : [];
  for (const { role, content } of messages) {
    if (!content) continue;
    const last = turns.at(-1);
    if (last?.role === role) last.content += `\n\n${content}`;
    else turns.push({ role, content });
  }
  return turns;
}
