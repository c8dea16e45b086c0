// A model's text as formatted elements. Whatever it contains, nothing of it runs: raw HTML is shown as text, and what
// the parser makes goes through DOMPurify, which is also the only way into the document that the page's policy leaves.

import { Marked } from "./vendor/marked.esm.js";
import { copyText, icon, make } from "./dom.js";

const escaped = text => text.replace(/[&<>"']/g, character => `&#${character.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escaped(text),
    // A picture from elsewhere would tell that server who reads this; a link does so only when followed.
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
  },
});

const POLICY = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "input", "li", "ol", "p", "pre",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["align", "checked", "class", "disabled", "href", "start", "title", "type"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

/** Shows a text that grows: blocks that did not change are left alone. */
export class Markdown {
  constructor(container) {
    this.container = container;
    this.blocks = []; // what each child was made of
  }

  update(text) {
    const tokens = marked.lexer(text).filter(token => token.type !== "space" && token.type !== "def");
    tokens.forEach((token, index) => {
      if (this.blocks[index] === token.raw) return;
      const block = make("div", { className: "block" }, rendered(token));
      if (index < this.blocks.length) this.container.children[index].replaceWith(block);
      else this.container.append(block);
      this.blocks[index] = token.raw;
    });
    while (this.blocks.length > tokens.length) {
      this.blocks.pop();
      this.container.lastElementChild.remove();
    }
  }
}

function rendered(token) {
  const fragment = DOMPurify.sanitize(marked.parser([token]), POLICY);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const input of fragment.querySelectorAll("input")) {
    if (input.type === "checkbox") input.disabled = true;
    else input.remove();
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = make("div", { className: "table-frame", tabIndex: 0, role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const pre of fragment.querySelectorAll("pre")) frameCode(pre);
  for (const element of fragment.querySelectorAll("[class]")) {
    if (!element.closest(".code, .table-frame")) element.removeAttribute("class");
  }
  return fragment;
}

function frameCode(pre) {
  const code = pre.querySelector("code") ?? pre;
  const language = /(?:^|\s)language-([\w+#.-]{1,30})/.exec(code.className)?.[1] ?? "text";
  code.removeAttribute("class");
  pre.tabIndex = 0;
  const copy = make("button", { type: "button", className: "quiet", onclick: () => copyText(code.textContent) }, icon("copy"), "Copy");
  const frame = make("div", { className: "code" }, make("div", { className: "code-head" }, make("span", {}, language), copy));
  pre.replaceWith(frame);
  frame.append(pre);
}
