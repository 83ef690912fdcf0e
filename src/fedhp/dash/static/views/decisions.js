// Why: the words of a round, the bound, what happened to the links, the forecast, other planners.

import { get } from "../api.js";
import { h, setHidden, setText, tip } from "../dom.js";
import { DataTable } from "../datatable.js";
import { Drawing, figureCard, saveCsv } from "../figure.js";
import { count, isNumber, number, percent, seconds, ticks, whole, words } from "../format.js";
import { LineChart } from "../linechart.js";
import { colors, font, onThemeChange } from "../theme.js";

const ORDER = ["cut", "kept_bridge", "kept_bound", "kept_no_gain", "kept_untried", "kept_all", "fixed", "drawn", "scored", "tree"];

export class Decisions {
  constructor(context) {
    this.context = context;
    this.usesRound = true;
    const { focus } = context;
    const file = context.file(focus);
    this.wordsTitle = h("h2", { text: "What was decided, and why" });
    this.paragraphs = h("div", { class: "words" });
    this.distance = new LineChart({ title: "Distance against its bound", note: "what the pairs without a link add to the mean distance; cutting stops at the bound", file: `${file}-distance`, zero: true, height: 200, empty: "This algorithm has no distance bound." });
    this.forecast = new LineChart({ title: "Predicted against measured", note: "length of each round", file: `${file}-forecast`, zero: true, height: 200, format: seconds, empty: "This algorithm predicts no round time." });
    this.bars = new Drawing({ label: "", focusable: true, height: 200, draw: (ctx, w, hh) => this.paintBars(ctx, w, hh), overlay: (ctx, w, hh) => this.paintMark(ctx, w, hh) });
    this.bars.element.addEventListener("pointermove", (event) => this.point(event));
    this.bars.element.addEventListener("pointerleave", () => tip.hide());
    this.bars.element.addEventListener("click", (event) => {
      const index = this.indexAt(this.bars.point(event)[0]);
      if (index !== null) context.setRound(focus.decisions.round[index]);
    });
    this.bars.element.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const round = Math.min(focus.lastRound, Math.max(1, context.round() + by));
      context.setRound(round);
      setText(this.barsSaid, this.barLines(round - 1).join(", "));
    });
    this.barsSaid = h("p", { class: "sr", "aria-live": "polite" });
    this.barsCard = figureCard({ title: "Links by reason", note: "", file: `${file}-reasons`, picture: () => this.bars.picture(), table: () => this.barTable() });
    this.keys = h("ul", { class: "keys" });
    this.noBars = h("p", { class: "muted", text: "No link was judged in this run.", hidden: true });
    this.barsCard.body.append(this.noBars, this.bars.element, this.keys, this.barsSaid);
    this.element = h(
      "div",
      { class: "stack" },
      h("div", { class: "two" }, h("section", { class: "card stack", "aria-label": "The round in words" }, this.wordsTitle, this.paragraphs), h("div", { class: "stack" }, this.barsCard.element, this.distance.element, this.forecast.element)),
      this.whatIf(),
    );
    this.forget = onThemeChange(() => this.fillKeys());
  }

  async update() {
    const { focus } = this.context;
    if ((focus.decisions?.round.at(-1) ?? -1) < focus.lastRound) await focus.refreshDecisions();
    this.drawCharts();
    await this.drawWords();
  }

  async drawWords() {
    const round = this.context.round();
    if (!round) {
      setText(this.wordsTitle, "No round yet");
      return;
    }
    const answer = await this.context.focus.explain.get(round);
    if (round !== this.context.round()) return;
    setText(this.wordsTitle, `Round ${round}: what was decided, and why`);
    const wanted = answer.paragraphs.map((paragraph) => [paragraph.title ?? paragraph.heading, paragraph.text]);
    const shown = [...this.paragraphs.children].map((part) => [part.firstChild.textContent, part.lastChild.textContent]);
    if (JSON.stringify(wanted) === JSON.stringify(shown)) return;
    this.paragraphs.replaceChildren(...wanted.map(([title, text]) => h("div", {}, h("h3", { text: title }), h("p", { text }))));
  }

  drawCharts() {
    const { focus } = this.context;
    const table = focus.decisions;
    const has = (name) => (table[name] ?? []).some(isNumber);
    const line = (name, key, look) => ({ name, look, x: table.round, y: table[key] ?? [] });
    const shared = { xLabel: "round", xFormat: whole, marks: focus.losses() };
    this.distance.set({ ...shared, lines: has("mean_distance") ? [line("distance", "mean_distance", 0), line("bound", "distance_bound", 1)] : [] });
    setHidden(this.distance.element, !has("mean_distance"));
    if (has("planned_round_time")) {
      this.forecast.set({ ...shared, lines: [line("predicted", "planned_round_time", 1), line("measured", "round_time", 0)] });
      this.forecast.card.setNote(`length of each round; ${this.error("planned_round_time", "round_time")}`);
    } else if (has("planned_transfer_time")) {
      this.forecast.set({ ...shared, lines: [line("predicted", "planned_transfer_time", 1), line("measured", "transfer_time", 0)] });
      this.forecast.card.setNote(`time of the transfer in each round; ${this.error("planned_transfer_time", "transfer_time")}`);
    } else this.forecast.set({ ...shared, lines: [] });
    this.drawn = [...ORDER.filter((word) => table.verdicts[word]), ...Object.keys(table.verdicts).filter((word) => !ORDER.includes(word))].filter((word) => table.verdicts[word].some((links) => links > 0));
    setHidden(this.noBars, this.drawn.length > 0);
    setHidden(this.bars.element, !this.drawn.length);
    const cuts = table.verdicts.cut ? table.verdicts.cut.reduce((sum, links) => sum + links, 0) : 0;
    const total = this.drawn.reduce((sum, word) => sum + table.verdicts[word].reduce((a, b) => a + b, 0), 0);
    this.barsCard.setNote(this.drawn.includes("cut") ? `${percent(cuts / total)} of all links were cut. Click goes to a round.` : this.drawn.length ? "why links were used. Click goes to a round." : "");
    this.bars.setLabel(`Links by reason over ${table.round.length} rounds: ${this.drawn.map((word) => `${words(word)} ${table.verdicts[word].at(-1)} in the last`).join(", ")}. Left and right keys go through the rounds.`);
    this.fillKeys();
    this.bars.redraw();
    this.barsCard.refresh();
  }

  /** How far off the forecast is, as the mean of all rounds. */
  error(planned, measured) {
    const { decisions: table } = this.context.focus;
    const shares = table[planned].map((value, index) => [value, table[measured]?.[index]]).filter(([a, b]) => isNumber(a) && isNumber(b) && b > 0).map(([a, b]) => Math.abs(a - b) / b);
    return shares.length ? `off by ${percent(shares.reduce((a, b) => a + b, 0) / shares.length, 1)} on average` : "";
  }

  color(word) {
    const { verdicts } = colors();
    return verdicts[word] ?? verdicts.kept_all;
  }

  fillKeys() {
    const table = this.context.focus.decisions;
    if (!table || !this.drawn) return;
    this.keys.replaceChildren(
      ...this.drawn.map((word) => {
        const canvas = h("canvas", { width: 32, height: 24, "aria-hidden": "true", style: { width: "16px", height: "12px" } });
        const context = canvas.getContext("2d");
        context.scale(2, 2);
        this.block(context, word, 0, 0, 16, 12);
        return h("li", { title: table.words?.[word] ?? "" }, canvas, words(word), h("span", { class: "sr", text: table.words?.[word] ?? "" }));
      }),
    );
  }

  /** Links that were cut are striped. */
  block(context, word, x, y, width, height) {
    context.fillStyle = this.color(word);
    context.fillRect(x, y, width, height);
    if (word !== "cut" || width < 4) return;
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.strokeStyle = colors().card;
    context.globalAlpha = 0.55;
    context.lineWidth = 1.4;
    context.beginPath();
    for (let place = y - width; place < y + height + width; place += 6) {
      context.moveTo(x, place + width);
      context.lineTo(x + width, place);
    }
    context.stroke();
    context.restore();
  }

  geometry(width, height) {
    return { left: 46, top: 8, room: width - 56, high: height - 34 };
  }

  paintBars(context, width, height) {
    const table = this.context.focus.decisions;
    if (!table || !this.drawn?.length) return;
    const theme = colors();
    const { left, top, room, high } = this.geometry(width, height);
    const totals = table.round.map((_, index) => this.drawn.reduce((sum, word) => sum + (table.verdicts[word][index] ?? 0), 0));
    const most = Math.max(1, ...totals);
    context.font = font(12);
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const value of ticks(0, most, 4)) {
      const y = top + high - (value / most) * high;
      context.strokeStyle = theme.grid;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(left + room, y);
      context.stroke();
      context.fillStyle = theme.quiet;
      context.fillText(number(value), left - 6, y);
    }
    const step = room / table.round.length;
    const wide = Math.max(0.8, step - (step > 5 ? 2 : step > 2 ? 0.5 : 0));
    table.round.forEach((_, index) => {
      let base = top + high;
      for (const word of this.drawn) {
        const size = ((table.verdicts[word][index] ?? 0) / most) * high;
        if (size <= 0) continue;
        base -= size;
        this.block(context, word, left + index * step, base, wide, size);
      }
    });
    context.fillStyle = theme.quiet;
    context.textAlign = "center";
    const [first, last] = [table.round[0], table.round.at(-1)];
    for (const value of ticks(first, last, Math.max(2, room / 90)).filter(Number.isInteger)) {
      context.fillText(String(value), left + (value - first + 0.5) * step, top + high + 14);
    }
  }

  paintMark(context, width, height) {
    const table = this.context.focus.decisions;
    const index = table ? table.round.indexOf(this.context.round()) : -1;
    if (index < 0) return;
    const { left, top, room, high } = this.geometry(width, height);
    const step = room / table.round.length;
    context.strokeStyle = colors().ink;
    context.lineWidth = 1.5;
    context.strokeRect(left + index * step - 1, top - 2, Math.max(3, step), high + 3);
  }

  indexAt(x) {
    const table = this.context.focus.decisions;
    const { left, room } = this.geometry(this.bars.width, this.bars.height);
    const index = Math.floor(((x - left) / room) * table.round.length);
    return index >= 0 && index < table.round.length ? index : null;
  }

  barLines(index) {
    const table = this.context.focus.decisions;
    return [`Round ${table.round[index]}`, ...this.drawn.filter((word) => table.verdicts[word][index]).map((word) => `${words(word)}: ${count(table.verdicts[word][index], "link")}`)];
  }

  point(event) {
    const index = this.indexAt(this.bars.point(event)[0]);
    if (index === null) return tip.hide();
    tip.show(this.barLines(index), event.clientX, event.clientY);
  }

  barTable() {
    const table = this.context.focus.decisions;
    return { columns: ["round", ...this.drawn], rows: table.round.map((round, index) => [round, ...this.drawn.map((word) => table.verdicts[word][index])]) };
  }

  // Other planners in the same rounds.

  whatIf() {
    this.ask = h("button", { type: "button", class: "main", text: "Replay with other planners", onclick: () => this.replay() });
    this.state = h("p", { class: "muted", role: "status", text: "Replays the recorded rounds without training: how much sooner would other planners have done the same number of local steps?" });
    this.result = h("div", { class: "stack" });
    return h("section", { class: "card stack", "aria-label": "What another planner would have saved" }, h("h2", { text: "Seconds another planner would have saved" }), this.state, h("div", { class: "row" }, this.ask), this.result);
  }

  async replay() {
    this.ask.disabled = true;
    const { focus } = this.context;
    const began = performance.now();
    const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
    try {
      for (;;) {
        setText(this.state, "Replaying the run …");
        try {
          this.show(await get("whatif", { run: focus.run }));
          return;
        } catch (error) {
          if (error.status !== 503 || performance.now() - began > 300000 || this.gone) throw error;
          setText(this.state, "The server is busy with another replay; waiting …");
          await wait(1000 * (error.retryAfter ?? 2));
        }
      }
    } catch (error) {
      setText(this.state, `No replay: ${error.message}. ${error.help ?? ""}`);
    } finally {
      this.ask.disabled = false;
    }
  }

  show(answer) {
    const { recorded } = answer;
    // Rounds of different planners hold different work, those of an asynchronous one are slices of
    // time: what compares is how long each needs for as many local steps as were recorded.
    const saved = (row) => (row.steps_per_second > 0 && recorded.steps_per_second > 0 ? recorded.total_time * (1 - recorded.steps_per_second / row.steps_per_second) : null);
    const best = [...answer.planners].sort((a, b) => (saved(b) ?? -Infinity) - (saved(a) ?? -Infinity))[0];
    const signed = (value) => (isNumber(value) && value < 0 ? `−${seconds(-value)}` : seconds(value));
    const lines = [
      `As recorded (${recorded.planner}): ${count(recorded.rounds, "round")} in ${seconds(recorded.total_time)}, ${number(recorded.steps_per_second)} local steps per second of all workers.`,
      best && (saved(best) > 0 ? `For the same number of local steps, ${best.planner} would have saved most: ${seconds(saved(best))}.` : "No other planner would have saved time for the same number of local steps."),
      "How well the models would have become, a replay cannot tell.",
      answer.check.exact ? "The replay of the run's own planner gives exactly the recorded rounds." : `The replay of the run's own planner differs from the record from round ${answer.check.first_difference} on.`,
    ];
    setText(this.state, lines.filter(Boolean).join(" "));
    setText(this.ask, "Replay again");
    const table = new DataTable({
      caption: "Other planners in the same rounds",
      keyOf: (row) => row.planner,
      sort: "saved",
      descending: true,
      columns: [
        { key: "planner", title: "Planner", head_of_row: true, value: (row) => row.planner },
        { key: "saved", title: "Saved, for the same steps", number: true, value: saved, text: (row) => signed(saved(row)) },
        { key: "total", title: "Its rounds took", number: true, value: (row) => row.total_time, text: (row) => `${seconds(row.total_time)} for ${whole(row.rounds)}` },
        { key: "round_time", title: "Round", number: true, value: (row) => row.round_time, text: (row) => seconds(row.round_time) },
        { key: "waiting", title: "Waiting", number: true, value: (row) => row.mean_waiting_time, text: (row) => seconds(row.mean_waiting_time) },
        { key: "steps", title: "Steps per s", number: true, value: (row) => row.steps_per_second, text: (row) => number(row.steps_per_second) },
        { key: "links", title: "Links", number: true, value: (row) => row.mean_links, text: (row) => number(row.mean_links) },
        { key: "sure", title: "Basis", value: (row) => row.sure },
      ],
    });
    table.set(answer.planners);
    const assumptions = [...new Set(answer.planners.flatMap((row) => row.assumptions ?? []))];
    this.result.replaceChildren(
      table.element,
      h("div", { class: "tools" }, h("button", { type: "button", text: "CSV", "aria-label": "Download the replay as CSV", onclick: () => saveCsv(table.table(), `${this.context.file(this.context.focus)}-whatif`) })),
      ...(assumptions.length ? [h("details", {}, h("summary", { text: "Assumptions" }), h("ul", {}, assumptions.map((text) => h("li", { class: "muted", text }))))] : []),
    );
  }

  destroy() {
    this.gone = true;
    tip.hide();
    this.forget();
    this.bars.destroy();
    this.distance.destroy();
    this.forecast.destroy();
  }
}
