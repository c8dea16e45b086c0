// Elements are made here, never from markup: text stays text.

const ICONS = {
  copy: "M9 9h10v11H9zM5 15V4h10",
  retry: "M4 12a8 8 0 1 1 2.5 5.8M4 20v-5h5",
  edit: "m5 19 1-4L16 5l3 3L9 18zM14 7l3 3",
  remove: "M5 7h14M9 7V5h6v2M7 7l1 13h8l1-13",
  done: "m5 12 5 5 9-10",
  warning: "M12 4 2.5 20h19zM12 10v4m0 3v.2",
};

export const find = id => document.getElementById(id);

/** An element with properties, or attributes where a name has a dash, and children; null children are left out. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

export const iconButton = (name, label, onclick) =>
  make("button", { type: "button", className: "icon-button small", title: label, "aria-label": label, onclick }, icon(name));

/** Sets text only when it differs: untouched nodes cost no layout and keep a reader's selection. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** What a custom property is as a colour now. */
export function colourOf(property) {
  const probe = document.body.appendChild(make("span"));
  probe.style.color = `var(${property})`;
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

/** A short message that goes by itself; `action` is [label, function]. */
export function toast(text, action = null) {
  const element = make("div", { className: "toast" }, text);
  if (action) element.append(make("button", {
    type: "button", className: "quiet", textContent: action[0],
    onclick: () => { element.remove(); action[1](); },
  }));
  find("toasts").append(element);
  setTimeout(() => element.remove(), action ? 8000 : 4000);
}

/** Copies, also where pages without TLS have no clipboard. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.body.appendChild(make("textarea", { value: text, className: "hidden" }));
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    if (!copied) { toast("This browser does not let pages copy."); return; }
  }
  toast("Copied.");
}
