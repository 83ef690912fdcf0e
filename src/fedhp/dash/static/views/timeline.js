// One round, worker by worker: who computes, communicates and waits; and who set the pace so far.

import { choice, h, setHidden, setText, tip } from "../dom.js";
import { Drawing, figureCard } from "../figure.js";
import { count, device, isNumber, MISSING, percent, seconds, ticks, whole } from "../format.js";
import { LineChart } from "../linechart.js";
import { colors, font, kindColor, onThemeChange } from "../theme.js";

const PARTS = [["compute", "compute_time", "computes"], ["communicate", "communication_time", "communicates"], ["wait", "waiting_time", "waits"]];
const MOST_PACE_ROWS = 24;
const LONGEST_NAME = 16;

const short = (text) => (text.length > LONGEST_NAME ? `${text.slice(0, LONGEST_NAME - 1)}…` : text);

/** A bar; communicating is striped and waiting is hollow, so that colour is not the only sign. */
function bar(context, kind, x, y, width, height) {
  if (!(width > 0)) return;
  const theme = colors();
  context.fillStyle = theme[kind];
  context.fillRect(x, y, width, height);
  if (height < 6) return;
  if (kind === "communicate") {
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.strokeStyle = theme.card;
    context.globalAlpha = 0.45;
    context.lineWidth = 1.5;
    context.beginPath();
    for (let place = x - height - ((x - height) % 7); place < x + width; place += 7) {
      context.moveTo(place, y + height);
      context.lineTo(place + height, y);
    }
    context.stroke();
    context.restore();
  } else if (kind === "wait" && width > 3 && height > 6) {
    context.fillStyle = theme.card;
    context.fillRect(x + 1.5, y + 1.5, width - 3, height - 3);
  }
}

export function partKey(kind, text) {
  const canvas = h("canvas", { width: 48, height: 24, "aria-hidden": "true", style: { width: "24px", height: "12px" } });
  const context = canvas.getContext("2d");
  context.scale(2, 2);
  bar(context, kind, 0, 0, 24, 12);
  return h("li", {}, canvas, text);
}

export class Timeline {
  constructor(context) {
    this.context = context;
    this.usesRound = true;
    this.order = "worker";
    this.rows = [];
    const file = () => `${context.file(context.focus)}-round-${context.round()}-timeline`;
    const sorter = choice("Order", [["worker", "number"], ["device", "device"], ["time", "busy time"]], this.order, (order) => {
      this.order = order;
      this.draw();
    });
    this.gantt = new Drawing({ label: "", focusable: true, height: () => this.height(), draw: (ctx, w) => this.paint(ctx, w), overlay: (ctx, w) => this.paintFocus(ctx, w) });
    this.gantt.element.addEventListener("pointermove", (event) => this.point(event));
    this.gantt.element.addEventListener("pointerleave", () => this.choose(null));
    this.gantt.element.addEventListener("blur", () => this.choose(null));
    this.gantt.element.addEventListener("keydown", (event) => this.onKey(event));
    this.card = figureCard({ title: "Timeline of the round", file, controls: [sorter.element], picture: () => this.gantt.picture(), table: () => this.table() });
    this.keys = h("ul", { class: "keys" });
    this.said = h("p", { class: "sr", "aria-live": "polite" });
    this.card.body.append(this.keys, this.gantt.element, this.said);

    this.pace = new Drawing({ label: "", focusable: true, height: () => this.paceHeight(), draw: (ctx, w) => this.paintPace(ctx, w), overlay: (ctx) => this.paintPaceFocus(ctx) });
    this.pace.element.addEventListener("pointermove", (event) => this.pointPace(event));
    this.pace.element.addEventListener("pointerleave", () => tip.hide());
    this.pace.element.addEventListener("click", (event) => {
      const round = this.paceRound(this.pace.point(event)[0]);
      if (round) context.setRound(round);
    });
    this.pace.element.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const round = Math.min(context.focus.lastRound, Math.max(1, context.round() + by));
      context.setRound(round);
      setText(this.paceSaid, this.paceText(round));
    });
    this.paceSaid = h("p", { class: "sr", "aria-live": "polite" });
    this.paceCard = figureCard({
      title: "Who set the pace",
      file: `${context.file(context.focus)}-pace`,
      picture: () => this.pace.picture(),
      table: () => ({
        columns: ["round", "worker", "name", "device", "round_time"],
        rows: this.setters().map(({ round, worker }, index) => [round, worker, worker === null ? null : context.focus.name(worker), worker === null ? null : context.focus.info.devices?.[worker], context.focus.rounds.round_time[index]]),
      }),
    });
    this.noPace = h("p", { class: "muted", hidden: true });
    this.kindKeys = h("ul", { class: "keys" });
    this.forget = onThemeChange(() => this.draw());
    this.paceCard.body.append(this.noPace, this.pace.element, this.kindKeys, this.paceSaid);
    this.times = new LineChart({ title: "Length of the rounds", note: "and how long a worker waited on average", file: `${context.file(context.focus)}-rounds`, zero: true, format: seconds, height: 200 });
    this.element = h("div", { class: "stack" }, this.card.element, this.paceCard.element, this.times.element);
  }

  async update() {
    const { focus } = this.context;
    this.times.set({
      xLabel: "round", xFormat: whole, marks: focus.losses(),
      lines: [
        { name: "round", look: 0, x: focus.rounds.round, y: focus.rounds.round_time ?? [] },
        { name: "waiting", look: 1, x: focus.rounds.round, y: focus.rounds.mean_waiting_time ?? [] },
      ],
    });
    this.drawPace();
    const round = this.context.round();
    if (!round) return;
    const answer = await focus.round.get(round);
    if (round !== this.context.round()) return;
    this.answer = answer;
    this.draw();
  }

  draw() {
    const { focus } = this.context;
    const { answer } = this;
    if (!answer) return;
    const devices = focus.info.devices ?? [];
    const asynchronous = focus.info.asynchronous;
    this.rows = answer.workers.map((row) => ({ ...row, device: devices[row.worker], busy: (row.compute_time ?? 0) + (row.communication_time ?? 0) }));
    const present = this.rows.filter((row) => isNumber(row.worker_time));
    // With FedHP+ a worker trains while its model is on the way: both lines run from the start. The
    // record has one time for the transfer of the whole group.
    const members = new Set((answer.participation ?? []).filter((row) => !["left_out", "away"].includes(row.role)).map((row) => row.worker));
    const transfer = answer.facts?.transfer_time;
    this.overlap = members.size > 0 && isNumber(transfer) && present.every((row) => !row.communication_time);
    for (const row of this.rows) row.transfer = this.overlap && members.has(row.worker) ? transfer : row.communication_time;
    const keys = { worker: (row) => row.worker, device: (row) => `${row.device} ${String(row.worker).padStart(6, "0")}`, time: (row) => -row.busy };
    const key = keys[this.order];
    this.rows.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a.worker - b.worker));
    this.longest = Math.max(answer.round_time, ...present.map((row) => (asynchronous ? row.busy : row.worker_time + (row.waiting_time ?? 0))));
    this.card.setTitle(`Round ${answer.round}, worker by worker`);
    const waiting = answer.round_time ? answer.mean_waiting_time / answer.round_time : 0;
    const notes = [
      `the round took ${seconds(answer.round_time)}`,
      asynchronous ? "nobody waits: bars are the turns that ended in this round, which may have begun earlier" : this.overlap && !answer.mean_waiting_time ? "nobody waits" : `waiting ${seconds(answer.mean_waiting_time)} on average (${percent(waiting)})`,
      this.overlap && `the transfer of the group took ${seconds(transfer)}, while everyone trained`,
    ];
    this.card.setNote(notes.filter(Boolean).join("; "));
    this.keys.replaceChildren(partKey("compute", "computes"), partKey("communicate", "communicates"), ...(asynchronous || this.overlap ? [] : [partKey("wait", "waits")]));
    this.gantt.setLabel(`Timeline of round ${answer.round}: ${present.length} workers. Up and down keys read the workers; the table has all numbers.`);
    this.gantt.redraw();
    this.card.refresh();
  }

  rowHeight() {
    return Math.max(1, Math.min(22, 900 / Math.max(1, this.rows.length)));
  }

  height() {
    return Math.max(60, this.rows.length * this.rowHeight() + 30);
  }

  margin(context) {
    const { focus } = this.context;
    context.font = font(12, "700"); // the pace setter is bold
    const names = this.rows.slice(0, 200).map((row) => context.measureText(short(focus.name(row.worker))).width);
    return Math.ceil(Math.max(40, ...names)) + 12;
  }

  paint(context, width) {
    const theme = colors();
    const { focus } = this.context;
    const high = this.rowHeight();
    const left = this.margin(context);
    this.left = left;
    const room = width - left - 12;
    const x = (time) => left + (time / (this.longest || 1)) * room;
    const bottom = this.rows.length * high;
    context.textBaseline = "middle";
    context.textAlign = "center";
    for (const value of ticks(0, this.longest, Math.max(3, room / 100))) {
      context.strokeStyle = theme.grid;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x(value), 0);
      context.lineTo(x(value), bottom);
      context.stroke();
      context.fillStyle = theme.quiet;
      context.fillText(`${Number(value.toPrecision(6))} s`, Math.min(x(value), width - 18), bottom + 16);
    }
    const gap = high > 8 ? 3 : high > 4 ? 1 : 0;
    const every = Math.max(1, Math.ceil(13 / high));
    this.rows.forEach((row, index) => {
      const y = index * high + gap / 2;
      const size = high - gap;
      if (index % every === 0) {
        context.fillStyle = row.worker === this.answer.pace_setter ? theme.ink : theme.quiet;
        context.font = font(12, row.worker === this.answer.pace_setter ? "700" : "");
        context.textAlign = "right";
        context.fillText(short(focus.name(row.worker)), left - 8, Math.max(7, y + size / 2));
      }
      if (!isNumber(row.worker_time)) {
        context.fillStyle = theme.quiet;
        context.textAlign = "left";
        context.font = font(11);
        if (high > 9) context.fillText("away", left + 4, y + size / 2);
        return;
      }
      const [compute, communication] = [row.compute_time ?? 0, row.communication_time ?? 0];
      if (this.overlap) {
        bar(context, "compute", x(0), y, x(compute) - x(0), size / 2);
        bar(context, "communicate", x(0), y + size / 2, x(row.transfer ?? 0) - x(0), size / 2);
        bar(context, "wait", x(row.worker_time), y, x(row.worker_time + (row.waiting_time ?? 0)) - x(row.worker_time), size);
      } else {
        bar(context, "compute", x(0), y, x(compute) - x(0), size);
        bar(context, "communicate", x(compute), y, x(compute + communication) - x(compute), size);
        const start = compute + communication;
        bar(context, "wait", x(start), y, x(start + (row.waiting_time ?? 0)) - x(start), size);
      }
    });
    context.strokeStyle = theme.ink;
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(x(this.answer?.round_time ?? 0), 0);
    context.lineTo(x(this.answer?.round_time ?? 0), bottom + 4);
    context.stroke();
    context.setLineDash([]);
  }

  paintFocus(context, width) {
    if (this.chosen === null || this.chosen === undefined || !this.rows[this.chosen]) return;
    context.strokeStyle = colors().accent;
    context.lineWidth = 2;
    context.strokeRect(1, this.chosen * this.rowHeight(), width - 2, Math.max(3, this.rowHeight()));
  }

  lines(row) {
    const { focus } = this.context;
    const steps = row.local_steps ?? row.steps;
    if (!isNumber(row.worker_time)) return [focus.name(row.worker), device(row.device), "away in this round"];
    return [
      `${focus.name(row.worker)}, ${device(row.device)}`,
      `computes ${seconds(row.compute_time)}${isNumber(steps) ? `, ${count(steps, "step")}` : ""}`,
      this.overlap ? (row.transfer ? `exchanges with its group for ${seconds(row.transfer)} meanwhile` : "not in the group") : `communicates ${seconds(row.communication_time)}`,
      focus.info.asynchronous ? "" : `waits ${seconds(row.waiting_time)}`,
      row.worker === this.answer.pace_setter ? "the plan expects it to finish last" : "",
    ];
  }

  point(event) {
    const index = Math.floor(this.gantt.point(event)[1] / this.rowHeight());
    this.choose(this.rows[index] ? index : null);
    if (this.rows[index]) tip.show(this.lines(this.rows[index]), event.clientX, event.clientY);
  }

  choose(index) {
    this.chosen = index;
    if (index === null) tip.hide();
    this.gantt.paintOver();
  }

  onKey(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") return this.choose(null);
    if (!by || !this.rows.length) return;
    event.preventDefault();
    const index = Math.min(this.rows.length - 1, Math.max(0, (this.chosen ?? -1) + by));
    this.choose(index);
    const box = this.gantt.element.getBoundingClientRect();
    const lines = this.lines(this.rows[index]);
    tip.show(lines, box.left + this.left, box.top + (index + 1) * this.rowHeight());
    setText(this.said, lines.filter(Boolean).join(", "));
  }

  table() {
    const { focus } = this.context;
    return {
      columns: ["worker", "name", "device", "steps", ...PARTS.map(([, key]) => key), "worker_time"],
      rows: this.rows.map((row) => [row.worker, focus.name(row.worker), row.device, row.local_steps ?? row.steps, ...PARTS.map(([, key]) => row[key]), row.worker_time]),
    };
  }

  /** Per round the worker whose time the others match: as planned, else as measured. */
  setters() {
    const { rounds } = this.context.focus;
    return rounds.round.map((round, index) => ({ round, worker: rounds.pace_setter?.[index] ?? rounds.slowest?.[index] ?? null, planned: isNumber(rounds.pace_setter?.[index]) }));
  }

  drawPace() {
    const { focus } = this.context;
    const setters = this.setters();
    const counts = new Map();
    for (const { worker } of setters) if (worker !== null) counts.set(worker, (counts.get(worker) ?? 0) + 1);
    this.paceRows = [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, MOST_PACE_ROWS);
    this.paceTotal = counts.size;
    const none = !counts.size;
    setHidden(this.noPace, !none);
    setHidden(this.pace.element, none);
    setText(this.noPace, !focus.lastRound ? "No round yet." : focus.info.asynchronous ? "Nobody sets the pace: there is no barrier, every worker goes at its own." : "No single worker sets the pace: everyone trains until a common deadline.");
    const planned = setters.some((each) => each.planned);
    const [worker, times] = this.paceRows[0] ?? [null, 0];
    this.paceCard.setNote(
      none ? "" : `${planned ? "the worker that the plan expects to finish last" : "the worker that finished last"}; most often ${focus.name(worker)} (${device(focus.info.devices?.[worker])}): ${whole(times)} of ${count(setters.length, "round")}. Click goes to a round.`,
    );
    this.pace.setLabel(none ? "No pace setters" : `Who set the pace in ${setters.length} rounds: ${this.paceRows.slice(0, 5).map(([each, number]) => `${focus.name(each)} ${number} times`).join(", ")}. Left and right keys go through the rounds.`);
    const kinds = [...new Set(focus.info.devices ?? [])].sort();
    this.kindKeys.replaceChildren(...(none ? [] : kinds.map((kind, index) => h("li", {}, h("span", { class: "swatch", "aria-hidden": "true", style: { background: kindColor(index) } }), device(kind)))));
    this.pace.redraw();
    this.paceCard.refresh();
  }

  paceHeight() {
    return Math.max(1, this.paceRows?.length ?? 1) * 18 + 28;
  }

  paceGeometry() {
    const rounds = this.context.focus.rounds.round.length;
    const left = this.paceLeft ?? 60;
    return { left, room: this.pace.width - left - 54, rounds };
  }

  paintPace(context, width) {
    const theme = colors();
    const { focus } = this.context;
    context.font = font(12);
    const left = Math.ceil(Math.max(40, ...this.paceRows.map(([worker]) => context.measureText(short(focus.name(worker))).width))) + 14;
    this.paceLeft = left;
    const room = width - left - 54;
    const rounds = Math.max(1, focus.rounds.round.length);
    const place = new Map(this.paceRows.map(([worker], index) => [worker, index]));
    const kinds = [...new Set(focus.info.devices ?? [])].sort();
    const most = Math.max(1, ...this.paceRows.map(([, number]) => number));
    context.textBaseline = "middle";
    this.paceRows.forEach(([worker, number], index) => {
      const y = index * 18;
      context.fillStyle = index % 2 ? theme.card : theme.grid;
      context.globalAlpha = 0.5;
      context.fillRect(left, y, room, 18);
      context.globalAlpha = 1;
      context.fillStyle = theme.ink;
      context.textAlign = "right";
      context.fillText(short(focus.name(worker)), left - 8, y + 9);
      context.textAlign = "left";
      context.fillStyle = theme.wait;
      context.fillRect(left + room + 6, y + 14, 42 * (number / most), 2.5);
      context.fillStyle = theme.quiet;
      context.fillText(`${number} ×`, left + room + 8, y + 8);
    });
    const step = room / rounds;
    this.setters().forEach(({ worker }, index) => {
      const row = place.get(worker);
      if (row === undefined) return;
      context.fillStyle = kindColor(kinds.indexOf(focus.info.devices?.[worker]));
      context.fillRect(left + index * step, row * 18 + 2, Math.max(1.2, step - (step > 4 ? 1 : 0)), 14);
    });
    context.fillStyle = theme.quiet;
    context.textAlign = "center";
    for (const value of ticks(1, rounds, Math.max(2, room / 110)).filter((each) => Number.isInteger(each) && each >= 1)) {
      context.fillText(String(value), left + (value - 0.5) * step, this.paceRows.length * 18 + 14);
    }
  }

  paintPaceFocus(context) {
    const { left, room, rounds } = this.paceGeometry();
    const round = this.context.round();
    if (!rounds || !this.paceRows?.length) return;
    const x = left + ((round - 0.5) / rounds) * room;
    context.strokeStyle = colors().ink;
    context.lineWidth = 1.5;
    context.strokeRect(x - Math.max(2, room / rounds / 2), 0, Math.max(4, room / rounds), this.paceRows.length * 18);
  }

  paceRound(x) {
    const { left, room, rounds } = this.paceGeometry();
    const round = Math.floor(((x - left) / room) * rounds) + 1;
    return round >= 1 && round <= rounds ? round : null;
  }

  paceText(round) {
    const { focus } = this.context;
    const setter = this.setters()[round - 1];
    return `Round ${round}: ${setter && setter.worker !== null ? `${focus.name(setter.worker)}, ${device(focus.info.devices?.[setter.worker])}` : MISSING}`;
  }

  pointPace(event) {
    const round = this.paceRound(this.pace.point(event)[0]);
    if (!round) return tip.hide();
    tip.show([this.paceText(round), `took ${seconds(this.context.focus.rounds.round_time[round - 1])}`], event.clientX, event.clientY);
  }

  destroy() {
    tip.hide();
    this.forget();
    this.gantt.destroy();
    this.pace.destroy();
    this.times.destroy();
  }
}
