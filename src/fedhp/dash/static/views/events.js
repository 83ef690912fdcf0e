// What happened to the run and its workers: a lane per kind over time, and the list.

import { h, setHidden, setText, tip } from "../dom.js";
import { DataTable } from "../datatable.js";
import { eventBadge, EVENTS } from "../badges.js";
import { Drawing, figureCard } from "../figure.js";
import { clockTime, count, isNumber, MISSING, seconds, ticks, whole, words } from "../format.js";
import { colors, font } from "../theme.js";

const LANE = 26;

export class Events {
  constructor(context) {
    this.context = context;
    this.hiddenKinds = new Set();
    const { focus } = context;
    const file = `${context.file(focus)}-events`;
    this.lane = new Drawing({ label: "", focusable: true, height: () => Math.max(1, this.kinds?.length ?? 1) * LANE + 32, draw: (ctx, w) => this.paint(ctx, w), overlay: (ctx) => this.paintMark(ctx) });
    this.lane.element.addEventListener("pointermove", (event) => this.point(event));
    this.lane.element.addEventListener("pointerleave", () => this.mark(null));
    this.lane.element.addEventListener("blur", () => this.mark(null));
    this.lane.element.addEventListener("keydown", (event) => this.onKey(event));
    this.said = h("p", { class: "sr", "aria-live": "polite" });
    this.card = figureCard({
      title: "Events", file, picture: () => this.lane.picture(),
      table: () => ({ columns: ["at", "clock", "round", "kind", "worker", "name", "text"], rows: this.shown().map((event) => [event.at, event.clock, event.round, event.kind, event.worker, event.worker === null || event.worker === undefined ? null : this.workerName(event.worker), event.text]) }),
    });
    this.none = h("p", { class: "muted", text: "Nothing happened that is worth a note: no worker joined late, left, or was refused.", hidden: true });
    this.filters = h("div", { class: "row", role: "group", "aria-label": "Kinds of events shown" });
    this.card.body.append(this.none, this.lane.element, this.said);
    this.table = new DataTable({
      caption: "Events, newest first",
      keyOf: (event) => event.key,
      columns: [
        { key: "order", title: "Time", value: (event) => event.order, text: (event) => (isNumber(event.at) ? clockTime(event.at) : isNumber(event.clock) ? seconds(event.clock) : MISSING) },
        { key: "round", title: "Round", number: true, value: (event) => event.round, text: (event) => (isNumber(event.round) ? whole(event.round) : MISSING) },
        { key: "kind", title: "Kind", value: (event) => event.kind, node: (event, cell) => eventBadge(cell, event.kind) },
        { key: "worker", title: "Worker", value: (event) => (event.worker === null || event.worker === undefined ? null : this.workerName(event.worker)) },
        { key: "text", title: "What", wide: true, value: (event) => event.text },
      ],
      sort: "order",
      descending: true,
    });
    this.list = h("section", { class: "card stack", "aria-label": "List of events" }, h("h2", { text: "List" }), this.filters, h("div", { class: "log", role: "log", "aria-label": "Events, newest first", tabindex: "0" }, this.table.element));
    this.element = h("div", { class: "stack" }, this.card.element, this.list);
  }

  workerName(worker) {
    return typeof worker === "number" ? this.context.focus.name(worker) : String(worker);
  }

  async update() {
    await this.context.focus.refreshEvents();
    this.draw();
  }

  shown() {
    return this.events.filter((event) => !this.hiddenKinds.has(event.kind));
  }

  draw() {
    const { focus } = this.context;
    const real = focus.events.length > 0 && focus.events.every((event) => isNumber(event.at));
    const clock = focus.events.length > 0 && focus.events.every((event) => isNumber(event.clock));
    this.axis = real ? "at" : clock ? "clock" : "round";
    this.events = focus.events.map((event, index) => ({ ...event, key: index, order: index, place: event[this.axis] }));
    const known = Object.keys(EVENTS);
    this.kinds = [...new Set(this.events.map((event) => event.kind))].sort((a, b) => (known.indexOf(a) + 99) % 99 - ((known.indexOf(b) + 99) % 99));
    const empty = !this.events.length;
    setHidden(this.none, !empty);
    setHidden(this.lane.element, empty);
    setHidden(this.list, empty);
    this.card.setNote(empty ? "" : `${count(this.events.length, "event")}; over ${real ? "time since the first of them" : clock ? this.context.timeName : "rounds"}`);
    this.lane.setLabel(`Events by kind: ${this.kinds.map((kind) => `${words(kind)} ${this.events.filter((event) => event.kind === kind).length}`).join(", ")}. Left and right keys go through the events.`);
    this.fillFilters();
    this.table.set(this.shown());
    this.lane.redraw();
    this.card.refresh();
  }

  fillFilters() {
    for (const kind of this.kinds) {
      const known = [...this.filters.children].find((label) => label.dataset.kind === kind);
      const text = `${words(kind)} (${this.events.filter((event) => event.kind === kind).length})`;
      if (known) {
        setText(known.lastChild, text);
        continue;
      }
      const box = h("input", { type: "checkbox", checked: true, onchange: () => { if (box.checked) this.hiddenKinds.delete(kind); else this.hiddenKinds.add(kind); this.draw(); } });
      this.filters.append(h("label", { class: "check", "data-kind": kind }, box, h("span", { text })));
    }
  }

  range() {
    const places = this.events.map((event) => event.place).filter(isNumber);
    const low = places.reduce((a, b) => Math.min(a, b), Infinity);
    const high = places.reduce((a, b) => Math.max(a, b), -Infinity);
    return this.axis === "at" ? [low, Math.max(high, low + 1)] : [0, Math.max(high, this.axis === "clock" ? this.context.focus.rounds.clock?.at(-1) ?? 1 : this.context.focus.lastRound, 1)];
  }

  x(event, width = this.lane.width) {
    const [low, high] = this.range();
    return 110 + ((event.place - low) / (high - low || 1)) * (width - 130);
  }

  paint(context, width) {
    if (!this.events?.length) return;
    const theme = colors();
    const [low, high] = this.range();
    const bottom = this.kinds.length * LANE;
    context.font = font(12);
    context.textBaseline = "middle";
    this.kinds.forEach((kind, index) => {
      const y = index * LANE + LANE / 2;
      context.strokeStyle = theme.grid;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(104, y);
      context.lineTo(width - 8, y);
      context.stroke();
      context.fillStyle = theme.ink;
      context.textAlign = "right";
      context.fillText(words(kind), 92, y);
    });
    context.textAlign = "center";
    const tones = { good: theme.good, warn: theme.warn, bad: theme.bad, info: theme.accent, dim: theme.quiet };
    context.font = font(14, "700");
    // A place that is taken already is not drawn again: thousands of events stay quick.
    const taken = new Set();
    for (const event of this.shown()) {
      if (!isNumber(event.place)) continue;
      const x = this.x(event, width);
      const lane = this.kinds.indexOf(event.kind);
      const spot = `${lane} ${Math.round(x / 3)}`;
      if (taken.has(spot)) continue;
      taken.add(spot);
      const [tone, sign] = EVENTS[event.kind] ?? ["dim", "•"];
      context.fillStyle = tones[tone];
      context.fillText(sign, x, lane * LANE + LANE / 2 + 1);
    }
    context.font = font(12);
    context.fillStyle = theme.quiet;
    const offset = this.axis === "at" ? low : 0;
    for (const value of ticks(0, high - offset, Math.max(2, width / 130))) {
      context.fillText(this.axis === "round" ? String(value) : `${value} s`, this.x({ place: value + offset }, width), bottom + 14);
    }
  }

  paintMark(context) {
    if (!this.marked || !isNumber(this.marked.place)) return;
    context.strokeStyle = colors().accent;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(this.x(this.marked), this.kinds.indexOf(this.marked.kind) * LANE + LANE / 2, 11, 0, 2 * Math.PI);
    context.stroke();
  }

  mark(event) {
    this.marked = event;
    if (!event) tip.hide();
    this.lane.paintOver();
  }

  lines(event) {
    return [words(event.kind), event.worker === null || event.worker === undefined ? "" : this.workerName(event.worker), event.text, isNumber(event.round) ? `round ${event.round}` : "", isNumber(event.at) ? clockTime(event.at) : isNumber(event.clock) ? seconds(event.clock) : ""];
  }

  point(pointer) {
    const [x, y] = this.lane.point(pointer);
    const lane = Math.floor(y / LANE);
    const near = this.shown().filter((event) => isNumber(event.place) && this.kinds.indexOf(event.kind) === lane && Math.abs(this.x(event) - x) < 9);
    const best = near.sort((a, b) => Math.abs(this.x(a) - x) - Math.abs(this.x(b) - x))[0] ?? null;
    this.mark(best);
    if (best) tip.show([...this.lines(best), near.length > 1 ? `and ${near.length - 1} more here` : ""], pointer.clientX, pointer.clientY);
  }

  onKey(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const shown = this.shown();
    if (!by || !shown.length) return;
    event.preventDefault();
    const at = this.marked ? shown.findIndex((each) => each.key === this.marked.key) : by > 0 ? -1 : shown.length;
    const next = shown[Math.min(shown.length - 1, Math.max(0, at + by))];
    this.mark(next);
    const box = this.lane.element.getBoundingClientRect();
    tip.show(this.lines(next), box.left + this.x(next), box.top + this.kinds.indexOf(next.kind) * LANE);
    setText(this.said, this.lines(next).filter(Boolean).join(", "));
  }

  destroy() {
    tip.hide();
    this.lane.destroy();
  }
}
