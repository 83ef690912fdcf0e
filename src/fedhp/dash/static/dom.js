// Elements without HTML text: whatever comes from the network is only ever textContent.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);

export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

/** Set the text only if it changed, so that a screen reader or a selection is not disturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setHidden(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

export function byId(id) {
  return document.getElementById(id);
}

let counter = 0;
export function newId(prefix) {
  counter += 1;
  return `${prefix}-${counter}`;
}

/** A labelled group of choices that look like one control. Returns {element, set(value)}. */
export function choice(label, options, value, changed) {
  const name = newId("choice");
  const inputs = options.map(([key, text]) => {
    const input = h("input", { type: "radio", name, value: key, id: newId("option"), onchange: () => changed(key) });
    input.checked = key === value;
    return [input, h("label", { for: input.id, text })];
  });
  const element = h("fieldset", { class: "choice" }, h("legend", { text: label }), h("div", {}, inputs.flat()));
  return {
    element,
    set(key) {
      for (const [input] of inputs) input.checked = input.value === key;
    },
  };
}

export function select(label, options, value, changed) {
  const id = newId("select");
  const control = h(
    "select",
    { id, onchange: (event) => changed(event.target.value) },
    options.map(([key, text]) => h("option", { value: key, text })),
  );
  control.value = value;
  return { element: h("div", { class: "field" }, h("label", { for: id, text: label }), control), control };
}

/** A short text at the pointer, or at a point that has the keyboard's focus. */
export const tip = {
  show(lines, x, y) {
    const element = byId("tip");
    element.replaceChildren(...lines.filter(Boolean).map((line, index) => h("div", { class: index ? "" : "head", text: line })));
    element.hidden = false;
    const box = element.getBoundingClientRect();
    const left = Math.max(8, Math.min(x + 14, window.innerWidth - box.width - 8));
    const below = y + 16 + box.height < window.innerHeight;
    element.style.left = `${left}px`;
    element.style.top = `${below ? y + 16 : Math.max(8, y - box.height - 12)}px`;
  },
  hide() {
    setHidden(byId("tip"), true);
  },
};

let lastAnnounced = 0;
/** Say something to screen readers, at most every few seconds unless it matters now. */
export function announce(text, { now = false } = {}) {
  const time = performance.now();
  if (!now && time - lastAnnounced < 10000) return;
  lastAnnounced = time;
  setText(byId("announce"), text);
}
