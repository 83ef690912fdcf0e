// A figure in its card: title, drawing, the same numbers as a table, and downloads of what is shown.

import { h, newId, setHidden, setText } from "./dom.js";
import { SvgContext } from "./svg.js";
import { colors, font, onThemeChange } from "./theme.js";

const MOST_ROWS = 1000; // of a table below a figure; the CSV has all
const PNG_SCALE = 2;
const MARGIN = 16;
const TITLE = 34;

function save(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function cell(value) {
  if (value === null || value === undefined) return "";
  const text = String(value);
  // A spreadsheet would run a text that begins like a formula.
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function toCsv({ columns, rows }) {
  return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

export function saveCsv(table, name) {
  save(new Blob([toCsv(table)], { type: "text/csv;charset=utf-8" }), `${name}.csv`);
}

/** Draw the picture with its title on a context; w and h are the size of the drawing itself. */
function compose(context, picture, title) {
  const { width, height, draw } = picture;
  const theme = colors();
  context.fillStyle = theme.card;
  context.fillRect(0, 0, width + 2 * MARGIN, height + 2 * MARGIN + TITLE);
  context.fillStyle = theme.ink;
  context.font = font(15, "600");
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(title, MARGIN, MARGIN + 10);
  context.save();
  context.translate(MARGIN, MARGIN + TITLE);
  draw(context, width, height);
  context.restore();
}

/**
 * options: title, note, file (name of downloads), picture() -> {width, height, draw(ctx, w, h)},
 * table() -> {columns, rows}, table only: without picture.
 */
export function figureCard({ title, note = "", file, picture = null, table, controls = [], level = "h2" }) {
  const body = h("div", {});
  const heading = h(level, { text: title, id: newId("figure") });
  const subtitle = h("p", { text: note });
  const view = h("div", { class: "tableview", tabindex: "0", role: "region", "aria-label": `${title}, as a table`, hidden: true });
  const fileName = () => (typeof file === "function" ? file() : file);
  let shown = false;
  const toggle = h("button", {
    type: "button",
    "aria-expanded": "false",
    text: "Table",
    onclick: () => {
      shown = !shown;
      toggle.setAttribute("aria-expanded", String(shown));
      setHidden(view, !shown);
      if (shown) fillTable();
    },
  });
  const button = (text, what, action) =>
    h("button", { type: "button", text, "aria-label": `Download ${title} as ${what}`, title: `Download as ${what}`, onclick: action });
  const fullTitle = () => [heading.textContent, subtitle.textContent].filter(Boolean).join(": ");
  const tools = h(
    "div",
    { class: "tools" },
    toggle,
    picture &&
      button("SVG", "SVG", () => {
        const shownPicture = picture();
        const context = new SvgContext(shownPicture.width + 2 * MARGIN, shownPicture.height + 2 * MARGIN + TITLE);
        compose(context, shownPicture, fullTitle());
        save(new Blob([context.toString()], { type: "image/svg+xml" }), `${fileName()}.svg`);
      }),
    picture &&
      button("PNG", "PNG", () => {
        const shownPicture = picture();
        const canvas = document.createElement("canvas");
        canvas.width = (shownPicture.width + 2 * MARGIN) * PNG_SCALE;
        canvas.height = (shownPicture.height + 2 * MARGIN + TITLE) * PNG_SCALE;
        const context = canvas.getContext("2d");
        context.scale(PNG_SCALE, PNG_SCALE);
        compose(context, shownPicture, fullTitle());
        canvas.toBlob((blob) => save(blob, `${fileName()}.png`), "image/png");
      }),
    button("CSV", "CSV", () => saveCsv(table(), fileName())),
  );
  const element = h(
    "figure",
    { class: "card", "aria-labelledby": heading.id },
    h("div", { class: "head" }, h("div", { class: "title" }, heading, subtitle), ...controls, tools),
    body,
    view,
  );

  function fillTable() {
    const { columns, rows } = table();
    const kept = rows.length > MOST_ROWS ? rows.slice(-MOST_ROWS) : rows;
    const show = (value) => (typeof value === "number" ? String(Number(value.toPrecision(6))) : (value ?? ""));
    const place = view.scrollTop;
    view.replaceChildren(
      h(
        "table",
        {},
        h("caption", { text: kept.length < rows.length ? `The last ${kept.length} of ${rows.length} rows; the CSV has all.` : title }),
        h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col", text: name })))),
        h("tbody", {}, kept.map((row) => h("tr", {}, row.map((value) => h("td", { text: show(value), class: typeof value === "number" ? "number" : "" }))))),
      ),
    );
    view.scrollTop = place;
  }

  return {
    element,
    body,
    setNote(text) {
      setText(subtitle, text);
      setHidden(subtitle, !text);
    },
    setTitle(text) {
      setText(heading, text);
    },
    /** The numbers changed: the open table follows. */
    refresh() {
      if (shown) fillTable();
    },
  };
}

/** A canvas as wide as its place and sharp on every screen, with a layer for what moves on top. */
export class Drawing {
  constructor({ height, draw, overlay = null, label, focusable = false }) {
    this.heightOf = typeof height === "function" ? height : () => height;
    this.drawBase = draw;
    this.drawOver = overlay;
    this.base = h("canvas", { "aria-hidden": "true" });
    this.over = overlay ? h("canvas", { class: "over", "aria-hidden": "true" }) : null;
    this.element = h("div", { class: "canvas", role: "img", "aria-label": label, ...(focusable ? { tabindex: "0" } : {}) }, this.base, this.over);
    this.width = 0;
    this.height = 0;
    this.waiting = false;
    this.observer = new ResizeObserver(() => this.redraw());
    this.observer.observe(this.element);
    this.forget = onThemeChange(() => this.redraw());
  }

  setLabel(text) {
    if (this.element.getAttribute("aria-label") !== text) this.element.setAttribute("aria-label", text);
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  paint() {
    const width = this.element.clientWidth;
    if (!width) return;
    const height = Math.round(this.heightOf(width));
    this.width = width;
    this.height = height;
    if (this.element.style.height !== `${height}px`) this.element.style.height = `${height}px`;
    this.drawBase(this.ready(this.base), width, height);
    this.paintOver();
  }

  paintOver() {
    if (this.over && this.width) this.drawOver(this.ready(this.over), this.width, this.height);
  }

  ready(canvas) {
    // Very large drawings are not worth the memory of a sharp screen.
    const scale = this.width * this.height > 3e6 ? 1 : window.devicePixelRatio || 1;
    const [width, height] = [Math.round(this.width * scale), Math.round(this.height * scale)];
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    return context;
  }

  /** What the downloads draw: the same function, at the size on the screen. */
  picture() {
    return { width: this.width || 900, height: this.height || 400, draw: (context, w, hh) => this.drawBase(context, w, hh) };
  }

  /** The pointer's place in the drawing. */
  point(event) {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  destroy() {
    this.observer.disconnect();
    this.forget();
  }
}
