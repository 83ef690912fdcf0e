// One round, worker by worker: who computes, communicates and waits; and who set the pace so far.

import { choice, h, setHidden, setText, tip } from "../dom.js";
import { Drawing, figureCard } from "../figure.js";
import { count, device, isNumber, MISSING, percent, seconds, ticks, whole } from "../format.js";
import { LineChart } from "../linechart.js";
import { colors, font, kindColor, onThemeChange } from "../theme.js";

const PARTS = ["compute_time", "transfer_time", "waiting_time"];
const MOST_PACE_ROWS = 24;
const MOST_ARROW_ROWS = 40; // with more workers only the arrows of the chosen one are drawn
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
        columns: ["round", "last_worker", "name", "device", "link_with", "link_time", "waited", "planned_worker", "plan_was_right", "round_time"],
        rows: this.setters().map((pace, index) => [pace.round, pace.last_worker, pace.last_worker === null ? null : context.focus.name(pace.last_worker), pace.last_worker === null ? null : context.focus.info.devices?.[pace.last_worker], pace.link_with, pace.link_time, pace.waited, pace.planned_worker, pace.plan_was_right === null ? null : pace.plan_was_right ? "yes" : "no", context.focus.rounds.round_time[index]]),
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
    const [answer, turns] = await Promise.all([focus.round.get(round), focus.info.asynchronous ? focus.turns.get(round) : null]);
    // A window at the end of a live run will have more in it later.
    if (turns && focus.info.live && turns.right >= (focus.rounds.clock?.at(-1) ?? 0)) focus.forgetTurns(round);
    if (round !== this.context.round()) return;
    this.answer = answer;
    this.turns = turns;
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
    // With FedHP+ a worker trains while its model is on the way: both lines run from the start.
    this.overlap = !asynchronous && this.rows.some((row) => row.transfer_time > (row.communication_time ?? 0));
    const keys = { worker: (row) => row.worker, device: (row) => `${row.device} ${String(row.worker).padStart(6, "0")}`, time: (row) => -row.busy };
    const key = keys[this.order];
    this.rows.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a.worker - b.worker));
    this.from = this.turns?.left ?? 0;
    this.to = this.turns?.right ?? Math.max(answer.round_time, ...present.map((row) => row.worker_time + (row.waiting_time ?? 0)));
    this.card.setTitle(asynchronous ? `Turns around round ${answer.round}` : `Round ${answer.round}, worker by worker`);
    this.card.setNote((asynchronous ? this.turnNotes() : this.roundNotes()).filter(Boolean).join("; "));
    const planned = answer.pace?.planned_worker;
    const keysShown = [partKey("compute", "computes"), partKey("communicate", "communicates")];
    if (asynchronous) keysShown.push(h("li", {}, "↕ averages with; dashed: the round"));
    else if (!this.overlap) keysShown.push(partKey("wait", "waits"));
    if (isNumber(answer.pace?.last_worker)) keysShown.push(h("li", {}, "bold: finished last"));
    if (isNumber(planned)) keysShown.push(h("li", {}, "○ the plan expected it to finish last"));
    this.keys.replaceChildren(...keysShown);
    this.gantt.setLabel(`Timeline of round ${answer.round}: ${present.length} workers. Up and down keys read the workers; the table has all numbers.`);
    this.gantt.redraw();
    this.card.refresh();
  }

  roundNotes() {
    const { answer } = this;
    const { focus } = this.context;
    const waiting = answer.round_time ? answer.mean_waiting_time / answer.round_time : 0;
    const transfer = Math.max(0, ...this.rows.map((row) => row.transfer_time ?? 0));
    return [
      `the round took ${seconds(answer.round_time)}`,
      this.overlap && !answer.mean_waiting_time ? "nobody waits" : `waiting ${seconds(answer.mean_waiting_time)} on average (${percent(waiting)})`,
      this.overlap && `the transfer of the group took ${seconds(transfer)}, while everyone trained`,
      isNumber(answer.pace?.last_worker) && this.lastText(answer.pace),
      answer.pace?.plan_was_right === false && `the plan expected ${focus.name(answer.pace.planned_worker)}`,
    ];
  }

  turnNotes() {
    const { began, ended, left, right, recorded, complete } = this.turns;
    if (!recorded) return ["nobody waits", "when each turn began is not on record, as of every run over a network; the table has the sums of the turns that ended in the round"];
    return [
      `the round is from ${seconds(began)} to ${seconds(ended)} of virtual time`,
      `shown are the turns from ${seconds(left)} to ${seconds(right)}`,
      "nobody waits",
      !complete && "of very many turns the record keeps the first ones of every round",
    ];
  }

  /** link to 10: 6.89 s */
  linkText({ link_with: other, link_time: time, directed, last_worker: last }) {
    const { focus } = this.context;
    const name = other === last ? "the server" : focus.info.network ? focus.name(other) : other;
    return isNumber(other) ? `link ${directed ? "from" : "to"} ${name}: ${seconds(time)}` : "no link";
  }

  lastText(pace) {
    return `${this.context.focus.name(pace.last_worker)} finished last, ${this.linkText(pace)}; ${count(pace.waited, "worker")} waited for it`;
  }

  /** The phases of a worker in the window, as far as they are on record. */
  phases() {
    const { worker, start, finish, partner } = this.turns.phases;
    return worker.map((each, index) => ({ worker: each, start: start[index], finish: finish[index], partner: partner[index] }));
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
    if (!this.answer) return;
    const theme = colors();
    const { focus } = this.context;
    const high = this.rowHeight();
    const left = this.margin(context);
    this.left = left;
    const room = width - left - 12;
    const x = (time) => left + ((Math.min(this.to, Math.max(this.from, time)) - this.from) / (this.to - this.from || 1)) * room;
    const bottom = this.rows.length * high;
    context.textBaseline = "middle";
    context.textAlign = "center";
    for (const value of ticks(this.from, this.to, Math.max(3, room / 100))) {
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
    const pace = this.answer.pace ?? {};
    const place = this.rows.findIndex((row) => row.worker === pace.last_worker);
    this.rows.forEach((row, index) => {
      const y = index * high + gap / 2;
      const size = high - gap;
      const last = row.worker === pace.last_worker;
      if (last || (index % every === 0 && (place < 0 || Math.abs(index - place) >= every))) {
        context.fillStyle = last ? theme.ink : theme.quiet;
        context.font = font(12, last ? "700" : "");
        context.textAlign = "right";
        context.fillText(short(focus.name(row.worker)), left - 8, Math.max(7, y + size / 2));
      }
      if (this.turns) return;
      if (!isNumber(row.worker_time)) {
        context.fillStyle = theme.quiet;
        context.textAlign = "left";
        context.font = font(11);
        if (high > 9) context.fillText("away", left + 4, y + size / 2);
        return;
      }
      const [compute, transfer] = [row.compute_time ?? 0, row.transfer_time ?? 0];
      if (this.overlap) {
        bar(context, "compute", x(0), y, x(compute) - x(0), size / 2);
        bar(context, "communicate", x(0), y + size / 2, x(transfer) - x(0), size / 2);
      } else {
        bar(context, "compute", x(0), y, x(compute) - x(0), size);
        bar(context, "communicate", x(compute), y, x(compute + transfer) - x(compute), size);
      }
      const start = this.overlap ? row.worker_time : compute + transfer;
      bar(context, "wait", x(start), y, x(start + (row.waiting_time ?? 0)) - x(start), size);
      if (last && isNumber(pace.link_with) && high > 12) this.label(context, this.linkText(pace), x(compute) + 6, y + size / 2);
      if (row.worker === pace.planned_worker) {
        context.beginPath();
        context.arc(x(row.worker_time), y + size / 2, Math.max(2.5, Math.min(6, size / 3)), 0, 2 * Math.PI);
        context.fillStyle = theme.card;
        context.fill();
        context.strokeStyle = theme.ink;
        context.lineWidth = 1.5;
        context.stroke();
      }
    });
    if (this.turns) this.paintTurns(context, x, high, gap);
    context.strokeStyle = theme.ink;
    context.lineWidth = 1;
    context.setLineDash([3, 3]);
    for (const time of this.turns ? [this.turns.began, this.turns.ended] : [this.answer.round_time]) {
      context.beginPath();
      context.moveTo(x(time), 0);
      context.lineTo(x(time), bottom + 4);
      context.stroke();
    }
    context.setLineDash([]);
  }

  /** Words on a bar, on their own ground. */
  label(context, text, x, y) {
    const theme = colors();
    context.font = font(11, "600");
    context.textAlign = "left";
    context.fillStyle = theme.card;
    context.fillRect(x, y - 7, context.measureText(text).width + 8, 14);
    context.fillStyle = theme.ink;
    context.fillText(text, x + 4, y + 0.5);
  }

  /** Bars where they happened in virtual time, and for each average an arrow to the partner. */
  paintTurns(context, x, high, gap) {
    const places = new Map(this.rows.map((row, index) => [row.worker, index]));
    const phases = this.phases();
    for (const { worker, start, finish, partner } of phases) {
      const edge = x(finish) - x(start) > 3 ? 0.5 : 0; // so that two transfers in a row stay two
      bar(context, partner === null ? "compute" : "communicate", x(start) + edge, places.get(worker) * high + gap / 2, x(finish) - x(start) - 2 * edge, high - gap);
    }
    if (this.rows.length <= MOST_ARROW_ROWS) this.arrows(context, phases, x);
  }

  arrows(context, phases, x) {
    const places = new Map(this.rows.map((row, index) => [row.worker, index]));
    const high = this.rowHeight();
    context.strokeStyle = context.fillStyle = colors().ink;
    context.lineWidth = 1;
    for (const { worker, finish, partner } of phases) {
      if (partner === null || finish > this.to || finish < this.from) continue;
      const [from, to] = [worker, partner].map((each) => (places.get(each) + 0.5) * high);
      const tipSize = Math.sign(to - from) * Math.min(5, high / 2);
      context.beginPath();
      context.moveTo(x(finish), from);
      context.lineTo(x(finish), to);
      context.stroke();
      context.beginPath();
      context.moveTo(x(finish), to);
      context.lineTo(x(finish) - 3, to - tipSize);
      context.lineTo(x(finish) + 3, to - tipSize);
      context.closePath();
      context.fill();
    }
  }

  paintFocus(context, width) {
    if (this.chosen === null || this.chosen === undefined || !this.rows[this.chosen]) return;
    context.strokeStyle = colors().accent;
    context.lineWidth = 2;
    context.strokeRect(1, this.chosen * this.rowHeight(), width - 2, Math.max(3, this.rowHeight()));
    if (!this.turns || this.rows.length <= MOST_ARROW_ROWS) return;
    const { worker } = this.rows[this.chosen];
    const room = width - this.left - 12;
    this.arrows(context, this.phases().filter((phase) => phase.worker === worker || phase.partner === worker), (time) => this.left + ((time - this.from) / (this.to - this.from || 1)) * room);
  }

  lines(row) {
    const { focus } = this.context;
    const steps = row.local_steps ?? row.steps;
    if (!isNumber(row.worker_time)) return [focus.name(row.worker), device(row.device), "away in this round"];
    const { pace } = this.answer;
    const trained = `computes ${seconds(row.compute_time)}${isNumber(steps) ? `, ${count(steps, "step")}` : ""}`;
    const name = `${focus.name(row.worker)}, ${device(row.device)}`;
    if (this.turns) return [name, `turns that ended in the round: ${trained}, communicates ${seconds(row.transfer_time)}`, ...this.averages(row.worker)];
    return [
      name,
      trained,
      this.overlap ? (row.transfer_time ? `exchanges with its group for ${seconds(row.transfer_time)} meanwhile` : "not in the group") : `communicates ${seconds(row.transfer_time)}`,
      `waits ${seconds(row.waiting_time)}`,
      row.worker === pace?.last_worker ? this.lastText(pace) : "",
      row.worker === pace?.planned_worker ? "the plan expected it to finish last" : "",
    ];
  }

  /** With whom a worker averages in the window. */
  averages(worker) {
    const { focus } = this.context;
    const own = this.phases().filter((phase) => phase.partner !== null && (phase.worker === worker || phase.partner === worker) && phase.finish <= this.to);
    return own.map(({ worker: sender, start, finish, partner }) => (sender === worker ? `${seconds(start)} to ${seconds(finish)}: transfer, averages with ${focus.name(partner)}` : `${seconds(finish)}: ${focus.name(sender)} averages with it`));
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
    if (this.turns?.recorded) {
      return {
        columns: ["worker", "name", "device", "phase", "start", "finish", "partner"],
        rows: this.phases().map(({ worker, start, finish, partner }) => [worker, focus.name(worker), focus.info.devices?.[worker], partner === null ? "computes" : "communicates", start, finish, partner]),
      };
    }
    return {
      columns: ["worker", "name", "device", "steps", ...PARTS, "worker_time"],
      rows: this.rows.map((row) => [row.worker, focus.name(row.worker), row.device, row.local_steps ?? row.steps, ...PARTS.map((key) => row[key]), row.worker_time]),
    };
  }

  /** Per round the worker that finished last, with its slowest link, and whom the plan expected. */
  setters() {
    const { rounds } = this.context.focus;
    const names = ["last_worker", "link_with", "link_time", "directed", "waited", "planned_worker", "plan_was_right"];
    return rounds.round.map((round, index) => ({ round, ...Object.fromEntries(names.map((name) => [name, rounds[name]?.[index] ?? null])) }));
  }

  drawPace() {
    const { focus } = this.context;
    const setters = this.setters();
    const counts = new Map();
    for (const { last_worker: last, planned_worker: planned } of setters) {
      if (last !== null) counts.set(last, (counts.get(last) ?? 0) + 1);
      if (last !== null && planned !== null) counts.set(planned, counts.get(planned) ?? 0);
    }
    this.paceRows = [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, MOST_PACE_ROWS);
    this.paceTotal = counts.size;
    const none = !counts.size;
    setHidden(this.noPace, !none);
    setHidden(this.pace.element, none);
    setText(this.noPace, !focus.lastRound ? "No round yet." : focus.info.asynchronous ? "Nobody sets the pace: there is no barrier, every worker goes at its own." : "No single worker sets the pace: everyone trains until a common deadline.");
    const judged = setters.filter((pace) => pace.plan_was_right !== null);
    const right = judged.filter((pace) => pace.plan_was_right).length;
    this.paceCard.setTitle(judged.length ? `Who set the pace: the plan was right in ${whole(right)} of ${count(judged.length, "round")}` : "Who set the pace");
    const [worker, times] = this.paceRows[0] ?? [null, 0];
    this.paceCard.setNote(
      none ? "" : `the worker that finished last${judged.length ? " (hollow: the one that the plan expected)" : ""}; most often ${focus.name(worker)} (${device(focus.info.devices?.[worker])}): ${whole(times)} of ${count(setters.length, "round")}. Click goes to a round.`,
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
    this.setters().forEach(({ last_worker: worker, planned_worker: planned }, index) => {
      if (worker === null) return;
      const [wide, color] = [Math.max(1.2, step - (step > 4 ? 1 : 0)), (each) => kindColor(kinds.indexOf(focus.info.devices?.[each]))];
      const [row, expected] = [place.get(worker), place.get(planned)];
      if (row !== undefined) {
        context.fillStyle = color(worker);
        context.fillRect(left + index * step, row * 18 + 2, wide, 14);
      }
      if (expected !== undefined && planned !== worker) {
        context.strokeStyle = color(planned);
        context.lineWidth = 1.5;
        context.strokeRect(left + index * step + 0.75, expected * 18 + 4, Math.max(1, wide - 1.5), 10);
      }
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
    const pace = this.setters()[round - 1];
    if (!pace || pace.last_worker === null) return `Round ${round}: ${MISSING}`;
    const plan = pace.plan_was_right === null ? "" : pace.plan_was_right ? "; as planned" : `; the plan expected ${focus.name(pace.planned_worker)}`;
    return `Round ${round}: ${focus.name(pace.last_worker)}, ${device(focus.info.devices?.[pace.last_worker])}, ${this.linkText(pace)}; ${count(pace.waited, "worker")} waited${plan}`;
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
