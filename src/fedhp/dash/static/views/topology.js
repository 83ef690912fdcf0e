// Who exchanges with whom in a round: a graph, the tree of a group average, or an adjacency map.

import { get } from "../api.js";
import { choice, h, select, setHidden, setText, svg, tip } from "../dom.js";
import { Drawing, figureCard } from "../figure.js";
import { count, device, isNumber, number, seconds, whole, words } from "../format.js";
import { force, ring, tree } from "../layout.js";
import { colors, font, kindColor, onRamp, reducedMotion, SHAPES } from "../theme.js";

const MOST_DRAWN = 50; // workers; more are a map
const MOVE_TIME = 420; // ms from one round's places to the next
const LEAST_KNOWN = 0.5; // share of the links in use that must be on record for a graph of them
const HATCH = 7; // px between two lines of the hatch
const [MAP_LEFT, MAP_TOP, MAP_EDGE] = [76, 24, 8]; // px around a map
const STRIP = 56; // px for the links of each worker, next to a map with unknown cells
const GROUP = {
  fast: "takes part: its links are fast", overdue: "takes part: it was left out as often as is allowed",
  added: "takes part: nobody else holds the current consensus", left_out: "left out because of its slow links", away: "away",
};

function shape(context, kind, x, y, r) {
  context.beginPath();
  if (kind === "circle") return context.arc(x, y, r, 0, 2 * Math.PI);
  const corners = { square: [4, Math.PI / 4, 1.18], diamond: [4, 0, 1.28], triangle: [3, -Math.PI / 2, 1.42], hexagon: [6, 0, 1.12] }[kind];
  const [sides, turn, scale] = corners;
  for (let side = 0; side < sides; side += 1) {
    const angle = turn + (2 * Math.PI * side) / sides;
    const [px, py] = [x + r * scale * Math.cos(angle), y + r * scale * Math.sin(angle)];
    if (side) context.lineTo(px, py);
    else context.moveTo(px, py);
  }
  context.closePath();
}

/** Distance of a point from a line between two points. */
function distanceTo(x, y, from, to) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const share = Math.max(0, Math.min(1, ((x - from.x) * dx + (y - from.y) * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(x - from.x - share * dx, y - from.y - share * dy);
}

export class Topology {
  constructor(context) {
    this.context = context;
    this.usesRound = true;
    const { focus } = context;
    this.workers = focus.info.workers;
    this.kind = this.workers > MOST_DRAWN ? "map" : "graph";
    this.arrangement = "springs";
    this.sort = "device";
    this.places = null;
    this.kinds = [...new Set(focus.info.devices ?? [])].sort();
    this.chosen = null;
    this.hovered = null;
    const file = () => `${context.file(focus)}-round-${context.round()}-topology`;
    const drawn = focus.info.group_average ? "tree" : "graph";
    this.viewChoice = choice("Show", [["graph", drawn], ["map", "map"]], this.kind, (kind) => {
      this.kind = kind;
      this.chosen = this.hovered = null;
      this.draw();
    });
    this.placeChoice = choice("Places", [["springs", "springs"], ["ring", "ring"]], this.arrangement, (way) => {
      this.arrangement = way;
      this.draw();
    });
    this.sortChoice = select("Sort by", [["device", "device"], ["class", "class"], ["speed", "speed"], ["worker", "number"]], this.sort, (sort) => this.sortBy(sort));
    this.drawing = new Drawing({
      label: "", focusable: true, height: (width) => this.heightFor(width),
      draw: (ctx, w, hh) => this.paint(ctx, w, hh), overlay: (ctx, w, hh) => this.paintOver(ctx, w, hh),
    });
    const element = this.drawing.element;
    element.addEventListener("pointermove", (event) => this.point(event));
    element.addEventListener("pointerleave", () => this.hover(null));
    element.addEventListener("click", () => this.hovered && this.choose(this.hovered));
    element.addEventListener("keydown", (event) => this.onKey(event));
    element.addEventListener("blur", () => tip.hide());
    this.card = figureCard({
      title: "Topology", file, controls: [], picture: () => this.drawing.picture(), table: () => this.table(),
    });
    this.keys = h("ul", { class: "keys" });
    this.problem = h("p", { class: "error", role: "status" });
    this.unknown = h("div", { class: "stack unknown", role: "status", hidden: true }, h("p", {}), h("p", {}, h("button", { type: "button", text: "Show the map", onclick: () => this.showMap() })));
    this.card.body.append(
      h("div", { class: "row" }, this.viewChoice.element, this.placeChoice.element, this.sortChoice.element),
      this.problem, this.unknown, this.drawing.element, this.keys,
    );
    this.detail = h("div", { class: "detail", "aria-live": "polite" });
    this.counts = h("dl", { class: "plain" });
    this.reasons = h("dl", { class: "plain" });
    this.element = h(
      "div",
      { class: "wide-left" },
      this.card.element,
      h("div", { class: "stack" }, h("section", { class: "card stack", "aria-label": "This round" }, h("h2", { text: "This round" }), this.counts, this.reasons), h("section", { class: "card stack", "aria-label": "Chosen link or worker" }, h("h2", { text: "Link or worker" }), this.detail)),
    );
    this.tell(null);
  }

  async update() {
    const { focus } = this.context;
    if (!focus.decisions) {
      focus.refreshDecisions().then(() => this.answer && this.summarize(), () => {});
    }
    const round = this.context.round();
    if (!round || this.shownRound === round) return;
    const answer = await focus.round.get(round);
    if (round !== this.context.round()) return;
    const before = this.answer;
    this.shownRound = round;
    this.answer = answer;
    this.wasUsed = new Set((before?.links ?? []).filter((link) => link.used).map((link) => `${link.a} ${link.b}`));
    this.draw();
    if (round < focus.lastRound) focus.round.get(round + 1).catch(() => {});
  }

  read() {
    const { answer } = this;
    const { focus } = this.context;
    this.group = new Map((answer.participation ?? []).map((row) => [row.worker, row]));
    const time = (link) => link.link_time ?? link.planned_link_time;
    const distance = (link) => link.distance ?? link.estimated_distance;
    this.links = answer.links.map((link) => ({ ...link, used: Boolean(link.used), time: time(link), far: distance(link) }));
    const range = (values) => {
      const known = values.filter((value) => isNumber(value) && value > 0);
      return known.length ? [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))] : [null, null];
    };
    this.timeRange = range(this.links.map((link) => link.time));
    this.farRange = range(this.links.map((link) => link.far));
    this.rows = new Map(answer.workers.map((row) => [row.worker, row]));
    // The record keeps a selection of very many links, but exact counts.
    const cut = (answer.verdicts ?? []).find((row) => row.verdict === "cut")?.links ?? this.links.filter((link) => link.verdict === "cut").length;
    const { rounds } = focus;
    this.totals = { used: rounds.links?.[rounds.round.indexOf(answer.round)] ?? 0, usedOnRecord: this.links.filter((link) => link.used).length, known: answer.links_known, onRecord: this.links.length, cut };
    this.partial = answer.links_known > this.links.length;
    this.directed = Boolean(answer.directed);
    this.isTree = this.group.size > 0;
    this.isAway = (worker) => {
      const row = this.rows.get(worker);
      return this.group.get(worker)?.role === "away" || (row && !isNumber(row.worker_time));
    };
    this.pace = answer.pace?.last_worker ?? null; // as measured
    this.expected = answer.pace?.planned_worker ?? null;
    this.asynchronous = focus.info.asynchronous;
  }

  timeShare(time) {
    const [low, high] = this.timeRange;
    if (!isNumber(time) || low === null || high <= low) return 0;
    return Math.log(Math.max(time, low) / low) / Math.log(high / low);
  }

  lineWidth(link) {
    const [low, high] = this.farRange;
    if (!isNumber(link.far) || low === null || high <= low) return 2;
    return 1 + 5 * ((link.far - low) / (high - low));
  }

  draw() {
    if (!this.answer) return;
    this.read();
    setHidden(this.placeChoice.element, this.kind !== "graph" || this.isTree);
    setHidden(this.sortChoice.element, this.kind !== "map");
    const shown = this.shownRound;
    const { used, usedOnRecord, cut } = this.totals;
    const withheld = this.isGraphWithheld();
    setHidden(this.unknown, !withheld);
    setHidden(this.drawing.element, withheld);
    setHidden(this.keys, withheld);
    setText(this.unknown.firstChild, `No graph: the record keeps ${whole(usedOnRecord)} of the ${whole(used)} links in use, those that explain the round. A graph of them would show groups of workers that do not exist. The map shows what is known and what is not.`);
    if (withheld) setHidden(this.placeChoice.element, true);
    const title = this.kind === "map" ? "Adjacency" : this.isTree ? "Group tree" : this.asynchronous ? "Pairs" : "Topology";
    this.card.setTitle(`${title} in round ${shown}`);
    this.card.setNote(this.note());
    const record = this.partial ? `, ${whole(usedOnRecord)} of them on record` : "";
    this.drawing.setLabel(`${title} of round ${shown}: ${this.workers} workers, ${count(used, this.directed ? "transfer" : "link")} in use${record}${cut ? `, ${whole(cut)} cut` : ""}. Arrow keys go through the ${this.kind === "map" ? "cells" : "links, those that were cut first"}; the table lists all.`);
    if (withheld) this.places = null;
    else if (this.kind === "graph") this.arrange();
    else this.order();
    this.fillKeys();
    this.summarize();
    if (this.chosen) this.choose(this.find(this.chosen));
    this.card.refresh();
  }

  showMap() {
    this.viewChoice.element.querySelector("input[value=map]").click();
    this.drawing.element.focus();
  }

  /** Springs and rings of a small selection would show a topology that does not exist. */
  isGraphWithheld() {
    const { used, usedOnRecord } = this.totals;
    return this.kind === "graph" && !this.isTree && this.partial && usedOnRecord < LEAST_KNOWN * used;
  }

  note() {
    const selection = this.partial ? `; the record keeps ${whole(this.links.length)} of ${whole(this.answer.links_known)} links` : "";
    if (this.isTree && this.kind === "graph") return `the sum goes up to the root, the result comes back${selection}`;
    if (this.asynchronous) return `the pairs that averaged their models in this slice of time; there is no barrier${selection}`;
    if (this.kind === "map") return `colour: link time${this.directed ? "; a row receives from its columns" : ""}${selection}`;
    return `${this.directed ? "arrows lead from the sender to the receiver; " : ""}colour: link time, thickness: distance of the models${selection}`;
  }

  arrange() {
    const { focus } = this.context;
    const order = Array.from({ length: this.workers }, (_, worker) => worker).sort((a, b) => {
      const [one, other] = [this.kinds.indexOf(focus.info.devices?.[a]), this.kinds.indexOf(focus.info.devices?.[b])];
      return one - other || a - b;
    });
    this.outside = null;
    let target;
    if (this.isTree) {
      const root = [...this.group.values()].find((row) => row.root)?.worker ?? null;
      const laid = tree(this.workers, root, this.links.filter((link) => link.used), Math.max(4, Math.floor((this.drawing.width || 700) / 46)));
      target = laid.places;
      this.outside = laid.outside;
    } else if (this.arrangement === "ring") target = ring(order);
    else {
      const warm = this.places && this.lastArrangement === "springs";
      const start = warm ? this.target : ring(order);
      target = force(start, this.links.filter((link) => link.used), { iterations: warm ? 60 : 260 });
    }
    this.lastArrangement = this.isTree ? "tree" : this.arrangement;
    this.target = target;
    this.animate(target);
  }

  /** Workers glide to their new places while links that were cut fade. */
  animate(target) {
    cancelAnimationFrame(this.frame);
    const from = this.places;
    if (!from || from.length !== target.length || reducedMotion()) {
      this.places = target;
      this.fade = 1;
      this.drawing.redraw();
      return;
    }
    const began = performance.now();
    const step = (now) => {
      const share = Math.min(1, (now - began) / MOVE_TIME);
      const eased = share < 0.5 ? 2 * share * share : 1 - (2 - 2 * share) ** 2 / 2;
      this.places = target.map((place, index) => ({ x: from[index].x + (place.x - from[index].x) * eased, y: from[index].y + (place.y - from[index].y) * eased }));
      this.fade = eased;
      this.drawing.paint();
      if (share < 1) this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
  }

  heightFor(width) {
    if (this.kind === "map") return Math.min(MAP_TOP + this.mapRoom(width) + MAP_EDGE, 760);
    return Math.max(320, Math.min(640, width * 0.72, window.innerHeight - 240));
  }

  at(worker, width, height) {
    const place = this.places[worker];
    const edge = this.radius() + 10;
    return { x: edge + place.x * (width - 2 * edge), y: edge + place.y * (height - 2 * edge) };
  }

  radius() {
    return this.workers <= 20 ? 15 : this.workers <= 60 ? 12 : 7;
  }

  paint(context, width, height) {
    if (!this.answer) return;
    if (this.kind === "map") this.paintMap(context, width, height);
    else if (this.places) this.paintGraph(context, width, height);
  }

  paintGraph(context, width, height) {
    const theme = colors();
    const r = this.radius();
    const line = (link) => [this.at(link.a, width, height), this.at(link.b, width, height)];
    if (this.outside !== null) {
      const y = r + 10 + this.outside * (height - 2 * (r + 10));
      context.strokeStyle = theme.line;
      context.lineWidth = 1;
      context.setLineDash([2, 4]);
      context.beginPath();
      context.moveTo(0, y);
      context.lineTo(width, y);
      context.stroke();
      context.setLineDash([]);
      context.fillStyle = theme.quiet;
      context.font = font(12);
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillText("not in this average", 2, y + 11);
    }
    const ordered = [...this.links].sort((a, b) => a.used - b.used || (a.time ?? 0) - (b.time ?? 0));
    for (const link of ordered) {
      const [from, to] = line(link);
      context.beginPath();
      context.moveTo(from.x, from.y);
      context.lineTo(to.x, to.y);
      if (link.used) {
        context.strokeStyle = onRamp(this.timeShare(link.time));
        context.globalAlpha = 0.85;
        context.lineWidth = this.lineWidth(link);
      } else {
        const newlyCut = this.wasUsed.has(`${link.a} ${link.b}`);
        context.strokeStyle = theme.cut;
        context.globalAlpha = newlyCut ? 0.9 - 0.55 * (this.fade ?? 1) : 0.3;
        context.lineWidth = newlyCut ? 1.6 : 1;
        context.setLineDash([4, 4]);
      }
      context.stroke();
      context.setLineDash([]);
      if (link.used && this.directed) this.arrow(context, to, from, r);
      context.globalAlpha = 1;
    }
    for (let worker = 0; worker < this.workers; worker += 1) this.paintWorker(context, worker, this.at(worker, width, height), r);
  }

  arrow(context, from, to, r) {
    const angle = Math.atan2(to.y - from.y, to.x - from.x);
    const [x, y] = [to.x - (r + 3) * Math.cos(angle), to.y - (r + 3) * Math.sin(angle)];
    context.fillStyle = context.strokeStyle;
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x - 10 * Math.cos(angle - 0.42), y - 10 * Math.sin(angle - 0.42));
    context.lineTo(x - 10 * Math.cos(angle + 0.42), y - 10 * Math.sin(angle + 0.42));
    context.closePath();
    context.fill();
  }

  paintWorker(context, worker, { x, y }, r) {
    const theme = colors();
    const { focus } = this.context;
    const kind = Math.max(0, this.kinds.indexOf(focus.info.devices?.[worker]));
    const color = kindColor(kind);
    const member = this.group.get(worker);
    const out = this.isAway(worker) || member?.role === "left_out";
    shape(context, SHAPES[kind % SHAPES.length], x, y, r);
    context.fillStyle = theme.card;
    context.fill();
    if (!out) {
      context.fillStyle = color;
      context.globalAlpha = 0.2;
      context.fill();
      context.globalAlpha = 1;
    }
    context.strokeStyle = color;
    context.lineWidth = member?.root ? 3.5 : 2;
    context.setLineDash(this.isAway(worker) ? [3, 3] : out ? [5, 3] : []);
    context.stroke();
    context.setLineDash([]);
    if (worker === this.pace || worker === this.expected) {
      context.strokeStyle = theme.ink;
      context.lineWidth = 1.5;
      context.setLineDash(worker === this.pace ? [] : [2, 3]);
      shape(context, SHAPES[kind % SHAPES.length], x, y, r + 4);
      context.stroke();
      context.setLineDash([]);
    }
    context.fillStyle = out ? theme.quiet : theme.ink;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = font(r > 12 ? 12 : r > 8 ? 11 : 8, "600");
    context.fillText(String(worker), x, y + 0.5);
    context.font = font(11, "600");
    context.fillStyle = theme.ink;
    if (member?.root) context.fillText("root", x, y - r - 9);
    if (member?.returns) context.fillText("↩ returns", x, y + r + 11);
    else if (member?.role === "left_out" && member.left_out > 0) {
      context.fillStyle = theme.quiet;
      context.fillText(`${member.left_out + 1} ×`, x, y + r + 10);
    } else if (worker === this.pace && r > 9) context.fillText("pace", x, y - r - 12);
  }

  // The map of who is linked with whom.

  async sortBy(sort) {
    this.sort = sort;
    setText(this.problem, "");
    if (sort === "class" && !this.context.focus.classes) {
      try {
        this.context.focus.classes = await get("classes", { run: this.context.focus.run });
      } catch (error) {
        setText(this.problem, `The classes are not known here: ${error.message}. ${error.help ?? ""}`);
        this.sort = "device";
        this.sortChoice.control.value = "device";
      }
    }
    this.draw();
  }

  /** The class that a worker has most samples of. */
  mainClass(worker) {
    const samples = this.context.focus.classes?.counts?.[worker];
    return samples?.length ? samples.indexOf(Math.max(...samples)) : null;
  }

  order() {
    const { focus } = this.context;
    const speed = (worker) => this.rows.get(worker)?.step_time ?? Infinity;
    const keys = {
      worker: (worker) => worker,
      device: (worker) => this.kinds.indexOf(focus.info.devices?.[worker]),
      speed,
      class: (worker) => this.mainClass(worker) ?? Infinity,
    };
    const key = keys[this.sort];
    this.sequence = Array.from({ length: this.workers }, (_, worker) => worker).sort((a, b) => (key(a) - key(b) || 0) || a - b);
    this.position = [];
    this.sequence.forEach((worker, index) => (this.position[worker] = index));
    this.cells = new Map();
    for (const link of this.links) {
      this.cells.set(link.a * this.workers + link.b, link);
      if (!this.directed) this.cells.set(link.b * this.workers + link.a, link);
    }
    // Where one group of workers ends and the next begins.
    const label = { device: (worker) => device(focus.info.devices?.[worker]), class: (worker) => `class ${this.context.focus.classes?.classes?.[this.mainClass(worker)] ?? this.mainClass(worker)}` }[this.sort];
    this.groups = [];
    if (label) {
      this.sequence.forEach((worker, index) => {
        const text = label(worker);
        if (this.groups.at(-1)?.text === text) this.groups.at(-1).end = index + 1;
        else this.groups.push({ text, start: index, end: index + 1 });
      });
    }
    this.drawing.redraw();
  }

  /** How wide a map can be. */
  mapRoom(width) {
    return width - MAP_LEFT - MAP_EDGE - (this.partial ? STRIP : 0);
  }

  mapGeometry(width, height) {
    const size = Math.min(this.mapRoom(width), height - MAP_TOP - MAP_EDGE);
    return { left: MAP_LEFT, top: MAP_TOP, size, cell: size / this.workers };
  }

  paintMap(context, width, height) {
    if (!this.sequence) return;
    const theme = colors();
    const { left, top, size, cell } = this.mapGeometry(width, height);
    context.fillStyle = theme.grid;
    context.globalAlpha = 0.55;
    context.fillRect(left, top, size, size);
    context.globalAlpha = 1;
    if (this.partial) this.paintHatch(context, left, top, size);
    const wide = Math.max(cell - (cell > 5 ? 1 : 0), 0.8);
    for (const link of this.links) {
      if (this.partial) {
        // A cell on record is not hatched, whether its link is used or not.
        context.fillStyle = theme.card;
        context.fillRect(left + this.position[link.b] * cell, top + this.position[link.a] * cell, cell, cell);
        if (!this.directed) context.fillRect(left + this.position[link.a] * cell, top + this.position[link.b] * cell, cell, cell);
      }
      context.fillStyle = link.used ? onRamp(this.timeShare(link.time)) : theme.cut;
      const spots = this.directed ? [[link.a, link.b]] : [[link.a, link.b], [link.b, link.a]];
      for (const [row, column] of spots) {
        const [x, y] = [left + this.position[column] * cell, top + this.position[row] * cell];
        // A link that was cut is a small dot in its cell: visible without its colour.
        if (link.used) context.fillRect(x, y, wide, wide);
        else context.fillRect(x + wide * 0.3, y + wide * 0.3, Math.max(0.5, wide * 0.4), Math.max(0.5, wide * 0.4));
      }
    }
    if (this.partial) this.paintStrip(context, { left, top, size, cell });
    context.font = font(11);
    context.textBaseline = "middle";
    context.fillStyle = theme.quiet;
    context.strokeStyle = theme.quiet;
    context.lineWidth = 1;
    for (const { text, start, end } of this.groups) {
      if (start) {
        context.beginPath();
        context.moveTo(left, top + start * cell);
        context.lineTo(left + size, top + start * cell);
        context.moveTo(left + start * cell, top);
        context.lineTo(left + start * cell, top + size);
        context.stroke();
      }
      if ((end - start) * cell > 11) {
        context.textAlign = "right";
        context.fillText(text, left - 6, top + ((start + end) / 2) * cell);
      }
      if ((end - start) * cell > 60) {
        context.textAlign = "center";
        context.fillText(text, left + ((start + end) / 2) * cell, top - 11);
      }
    }
    if (!this.groups.length) {
      const every = Math.max(1, Math.ceil(14 / cell));
      context.textAlign = "right";
      for (let index = 0; index < this.workers; index += every) context.fillText(String(this.sequence[index]), left - 6, top + (index + 0.5) * cell);
      context.textAlign = "left";
      context.fillText(this.sort === "speed" ? "fast → slow" : "worker 0 → last", left, top - 11);
    }
  }

  /** Cells of which nothing is known: diagonal lines. */
  paintHatch(context, left, top, size) {
    context.strokeStyle = colors().cut;
    context.globalAlpha = 0.55;
    context.lineWidth = 1;
    context.beginPath();
    for (let offset = HATCH; offset < 2 * size; offset += HATCH) {
      const [from, to] = [Math.min(offset, size), Math.max(0, offset - size)];
      context.moveTo(left + to, top + from);
      context.lineTo(left + from, top + to);
    }
    context.stroke();
    context.globalAlpha = 1;
  }

  /** How many links each worker has: exact, also where the map has unknown cells. */
  paintStrip(context, { left, top, size, cell }) {
    const theme = colors();
    const start = left + size + 6;
    const links = this.sequence.map((worker) => this.rows.get(worker)?.links ?? 0);
    const most = links.reduce((a, b) => Math.max(a, b), 1);
    const each = Math.max(1, Math.ceil(1 / cell)); // workers in one line of pixels
    context.fillStyle = theme.quiet;
    for (let index = 0; index < links.length; index += each) {
      const some = links.slice(index, index + each);
      // Of several workers: up to the fewest links, and paler up to the most.
      for (const [value, alpha] of [[Math.min(...some), 1], [Math.max(...some), each > 1 ? 0.35 : 0]]) {
        context.globalAlpha = alpha;
        if (alpha) context.fillRect(start, top + index * cell, ((STRIP - 12) * value) / most, some.length * cell - (cell > 3 ? 1 : 0));
      }
    }
    context.globalAlpha = 1;
    context.font = font(11);
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(`0–${whole(most)}`, start, top - 11);
  }

  paintOver(context, width, height) {
    const active = this.hovered ?? this.chosen;
    if (!active || !this.answer) return;
    const theme = colors();
    if (this.kind === "map") {
      const { left, top, size, cell } = this.mapGeometry(width, height);
      const [row, column] = active.cell ?? [this.position[active.a], this.position[active.b]];
      context.strokeStyle = theme.ink;
      context.lineWidth = 1;
      context.globalAlpha = 0.35;
      context.strokeRect(left, top + row * cell, size, cell);
      context.strokeRect(left + column * cell, top, cell, size);
      context.globalAlpha = 1;
      context.lineWidth = 2;
      context.strokeRect(left + column * cell - 2, top + row * cell - 2, cell + 4, cell + 4);
      return;
    }
    if (!this.places) return;
    const marked = active.worker !== undefined ? this.links.filter((link) => link.a === active.worker || link.b === active.worker) : [active];
    for (const link of marked) {
      const [from, to] = [this.at(link.a, width, height), this.at(link.b, width, height)];
      context.beginPath();
      context.moveTo(from.x, from.y);
      context.lineTo(to.x, to.y);
      context.strokeStyle = theme.ink;
      context.lineWidth = link.used ? this.lineWidth(link) + 1.5 : 2;
      context.setLineDash(link.used ? [] : [5, 4]);
      context.stroke();
      context.setLineDash([]);
    }
    const r = this.radius();
    const touched = active.worker !== undefined ? [active.worker, ...marked.filter((link) => link.used).map((link) => (link.a === active.worker ? link.b : link.a))] : [active.a, active.b];
    for (const worker of touched) this.paintWorker(context, worker, this.at(worker, width, height), r);
    if (active.worker !== undefined) {
      const { x, y } = this.at(active.worker, width, height);
      context.strokeStyle = theme.accent;
      context.lineWidth = 3;
      context.beginPath();
      context.arc(x, y, r + 5, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  point(event) {
    if (!this.answer || this.isGraphWithheld()) return;
    const [x, y] = this.drawing.point(event);
    const hit = this.kind === "map" ? this.cellAt(x, y) : this.nearest(x, y);
    this.hover(hit);
    if (hit) tip.show(this.lines(hit), event.clientX, event.clientY);
  }

  cellAt(x, y) {
    const { left, top, cell } = this.mapGeometry(this.drawing.width, this.drawing.height);
    const [row, column] = [Math.floor((y - top) / cell), Math.floor((x - left) / cell)];
    if (row < 0 || column < 0 || row >= this.workers || column >= this.workers) return null;
    const [a, b] = [this.sequence[row], this.sequence[column]];
    const link = this.cells.get(a * this.workers + b);
    return { ...(link ?? { a, b, none: true }), cell: [row, column] };
  }

  nearest(x, y) {
    const { width, height } = this.drawing;
    const r = this.radius() + 3;
    for (let worker = 0; worker < this.workers; worker += 1) {
      const place = this.at(worker, width, height);
      if (Math.hypot(place.x - x, place.y - y) <= r) return { worker };
    }
    let best = null;
    let least = 6;
    for (const link of this.links) {
      const away = distanceTo(x, y, this.at(link.a, width, height), this.at(link.b, width, height)) - (link.used ? 1.5 : 0);
      if (away < least) [best, least] = [link, away];
    }
    return best;
  }

  hover(hit) {
    const same = hit?.worker === this.hovered?.worker && hit?.a === this.hovered?.a && hit?.b === this.hovered?.b;
    this.hovered = hit;
    if (!hit) tip.hide();
    if (!same) {
      this.drawing.paintOver();
      if (hit) this.tell(hit);
      else this.tell(this.chosen);
    }
  }

  find(target) {
    if (target.worker !== undefined || target.none) return target;
    const link = this.links.find((each) => each.a === target.a && each.b === target.b);
    return link ? { ...link, cell: this.kind === "map" && this.position ? [this.position[link.a], this.position[link.b]] : undefined } : null;
  }

  choose(target) {
    this.chosen = target;
    this.drawing.paintOver();
    this.tell(target);
  }

  onKey(event) {
    if (!this.answer) return;
    if (event.key === "Escape") {
      tip.hide();
      return this.choose(null);
    }
    if (this.kind === "map") {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      const [row, column] = this.chosen?.cell ?? [0, 0];
      const clamp = (value) => Math.min(this.workers - 1, Math.max(0, value));
      const [nextRow, nextColumn] = this.chosen ? [clamp(row + move[0]), clamp(column + move[1])] : [0, 0];
      const [a, b] = [this.sequence[nextRow], this.sequence[nextColumn]];
      this.choose({ ...(this.cells.get(a * this.workers + b) ?? { a, b, none: true }), cell: [nextRow, nextColumn] });
      return;
    }
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const stops = [...this.links].sort((a, b) => a.used - b.used || a.a - b.a || a.b - b.b).concat(Array.from({ length: this.workers }, (_, worker) => ({ worker })));
    const at = this.chosen ? stops.findIndex((stop) => (this.chosen.worker !== undefined ? stop.worker === this.chosen.worker : stop.a === this.chosen.a && stop.b === this.chosen.b)) : -1;
    const next = stops[(at + by + stops.length) % stops.length];
    this.choose(next);
    const box = this.drawing.element.getBoundingClientRect();
    const place = next.worker !== undefined ? this.at(next.worker, this.drawing.width, this.drawing.height) : this.at(next.a, this.drawing.width, this.drawing.height);
    tip.show(this.lines(next), box.left + place.x, box.top + place.y);
  }

  /** How many links a worker has, and how many of them are on record. */
  linksOf(worker) {
    const recorded = this.links.filter((link) => link.used && (link.a === worker || link.b === worker)).length;
    if (!this.partial) return count(recorded, "link");
    return `${count(this.rows.get(worker)?.links ?? 0, "link")}, ${whole(recorded)} on record`;
  }

  reason(verdict) {
    if (!verdict) return "";
    const sentence = this.context.focus.decisions?.words?.[verdict];
    return sentence ?? words(verdict);
  }

  lines(target) {
    const { focus } = this.context;
    if (target.worker !== undefined) {
      const row = this.rows.get(target.worker);
      const member = this.group.get(target.worker);
      const steps = row?.local_steps ?? row?.steps;
      return [
        `${focus.name(target.worker)}, ${device(focus.info.devices?.[target.worker])}`,
        member ? `${member.root ? "root; " : ""}${GROUP[member.role] ?? words(member.role)}` : "",
        member?.returns ? "returns: it receives the whole consensus" : "",
        member?.role === "left_out" ? `left out ${count(member.left_out + 1, "time")} in a row` : "",
        this.isAway(target.worker) ? "away in this round" : row ? `${isNumber(steps) ? count(steps, "step") : "no step"}, ${seconds(row.step_time)} each` : "",
        row && isNumber(row.worker_time) ? `computes ${seconds(row.compute_time)}, communicates ${seconds(row.transfer_time)}${this.asynchronous ? "" : `, waits ${seconds(row.waiting_time)}`}` : "",
        target.worker === this.pace ? "it finished last: it set the pace" : "",
        target.worker === this.expected ? "the plan expected it to finish last" : "",
        this.linksOf(target.worker),
      ];
    }
    const [a, b] = [focus.name(target.a), target.a === target.b && !target.none ? "server" : focus.name(target.b)];
    if (target.none) {
      if (target.a === target.b) return [a, "the same worker", this.linksOf(target.a)];
      if (!this.partial) return [`${a} – ${b}`, "no link in this round"];
      return [`${a} – ${b}`, "not on record: nobody knows whether it was used", `${a}: ${this.linksOf(target.a)}`, `${b}: ${this.linksOf(target.b)}`];
    }
    return [
      this.directed ? `${b} → ${a}` : `${a} – ${b}`,
      target.used ? (this.isTree ? "part of the tree" : this.asynchronous ? "averaged as a pair" : "in use") : "not used in this round",
      this.reason(target.verdict),
      isNumber(target.link_time) ? `took ${seconds(target.link_time)}` : "",
      isNumber(target.planned_link_time) ? `predicted ${seconds(target.planned_link_time)}` : "",
      isNumber(target.distance) ? `distance ${number(target.distance)}` : isNumber(target.estimated_distance) ? `distance ${number(target.estimated_distance)}, estimated` : "",
    ];
  }

  tell(target) {
    const lines = target ? this.lines(target).filter(Boolean) : ["Nothing chosen", "Point at a link or a worker, or put the focus on the drawing and use the arrow keys. A link tells why it was cut or kept."];
    this.detail.replaceChildren(...lines.map((line) => h("p", { text: line })));
  }

  fillKeys() {
    const item = (...content) => h("li", {}, ...content);
    const [low, high] = this.timeRange;
    const [near, far] = this.farRange;
    const stroke = (width, dash = "") => svg("svg", { width: 26, height: 12, "aria-hidden": "true" }, svg("line", { x1: 0, y1: 6, x2: 26, y2: 6, stroke: "currentColor", "stroke-width": width, "stroke-dasharray": dash }));
    const anyCut = this.links.some((link) => !link.used);
    const keys = [];
    if (low !== null) keys.push(item(`link time ${seconds(low)}`, h("span", { class: "rampbar", "aria-hidden": "true" }), seconds(high)));
    if (this.kind === "graph" && near !== null && far > near) keys.push(item(`distance ${number(near)}`, stroke(1), stroke(3.5), stroke(6), number(far)));
    if (this.kind === "map" && this.partial) keys.push(...this.unknownKeys(item));
    if (anyCut) keys.push(this.kind === "map" ? item("small dot: considered, not used") : item(stroke(1.5, "4 4"), "cut: point at it for the reason"));
    if (this.kind === "graph") {
      this.kinds.forEach((kind, index) => {
        const canvas = h("canvas", { width: 36, height: 36, "aria-hidden": "true", style: { width: "18px", height: "18px" } });
        const context = canvas.getContext("2d");
        context.scale(2, 2);
        shape(context, SHAPES[index % SHAPES.length], 9, 9, 6);
        context.strokeStyle = kindColor(index);
        context.lineWidth = 2;
        context.stroke();
        keys.push(item(canvas, device(kind)));
      });
      if (this.isTree) keys.push(item("dashed outline: left out or away"));
      else if (this.pace !== null) keys.push(item(`double outline: finished last${this.expected === null ? "" : "; dotted: the plan expected it to"}`));
    }
    this.keys.replaceChildren(...keys);
  }

  /** What the hatch stands for, in counts. */
  unknownKeys(item) {
    const { used, usedOnRecord, known, onRecord } = this.totals;
    const unused = known - onRecord - (used - usedOnRecord);
    const pairs = (this.workers * (this.workers - 1)) / (this.directed ? 1 : 2);
    const parts = [`used, not on record: ${whole(used - usedOnRecord)}`];
    if (unused > 0) parts.push(`not used, not on record: ${whole(unused)}`);
    if (known < pairs) parts.push(`no link: ${whole(pairs - known)}`);
    const hatch = svg("svg", { width: 26, height: 14, "aria-hidden": "true" }, ...[4, 11, 18, 25, 32].map((x) => svg("line", { x1: x - 14, y1: 14, x2: x, y2: 0, stroke: "var(--cut)" })));
    return [item(hatch, parts.join("; ")), item(`on record: ${whole(usedOnRecord)} used, ${whole(onRecord - usedOnRecord)} not used`), item("bars on the right: links of each worker, all counted")];
  }

  summarize() {
    const { answer } = this;
    const pair = (name, value) => h("div", {}, h("dt", { text: name }), h("dd", { text: value }));
    const facts = [pair("round", `${whole(answer.round)} of ${whole(this.context.focus.lastRound)}`), pair("took", seconds(answer.round_time)), pair(this.directed ? "transfers" : "links in use", whole(this.context.focus.rounds.links?.[this.context.focus.rounds.round.indexOf(answer.round)]))];
    if (this.isTree) {
      const members = [...this.group.values()];
      const number_of = (test) => whole(members.filter(test).length);
      facts.push(
        pair("participants", number_of((row) => !["left_out", "away"].includes(row.role))),
        pair("root", this.context.focus.name(members.find((row) => row.root)?.worker ?? 0)),
        pair("returning", number_of((row) => row.returns)),
        pair("left out", number_of((row) => row.role === "left_out")),
        pair("away", number_of((row) => row.role === "away")),
      );
      if (!members.some((row) => row.root)) facts.splice(4, 1);
    }
    this.counts.replaceChildren(...facts);
    this.reasons.replaceChildren(
      ...(answer.verdicts ?? []).map((row) => {
        const name = h("dt", { text: words(row.verdict), title: this.context.focus.decisions?.words?.[row.verdict] ?? "" });
        return h("div", {}, name, h("dd", { text: count(row.links, "link") }));
      }),
    );
  }

  table() {
    const { focus } = this.context;
    return {
      columns: ["a", "name a", "b", "name b", "used", "verdict", "reason", "link_time", "planned_link_time", "distance", "estimated_distance", "bytes"],
      rows: (this.links ?? []).map((link) => [
        link.a, focus.name(link.a), link.b, focus.name(link.b), link.used ? "yes" : "no", link.verdict ?? null, focus.decisions?.words?.[link.verdict] ?? null,
        link.link_time, link.planned_link_time, link.distance, link.estimated_distance, link.bytes,
      ]),
    };
  }

  destroy() {
    cancelAnimationFrame(this.frame);
    tip.hide();
    this.drawing.destroy();
  }
}
