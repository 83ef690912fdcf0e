// How well, how fast, at which cost: one run, or several on common axes.

import { get } from "../api.js";
import { choice, h, setHidden, setText } from "../dom.js";
import { DataTable } from "../datatable.js";
import { saveCsv } from "../figure.js";
import { dataSize, number, percent, score, seconds, whole } from "../format.js";
import { LineChart } from "../linechart.js";

const SUMMARY_EVERY = 5000; // ms; the summary reads the whole record
export const MOST_CURVES = 20; // runs in one chart
const MIDDLE = { low: "10 %", high: "90 %", words: "from the 10 % to the 90 % quantile of the workers" };

/** Bytes sent up to each round. */
function sums(values) {
  let total = 0;
  return values.map((value) => (total += value ?? 0));
}

export class Progress {
  constructor(context) {
    this.context = context;
    this.several = context.all.length > 1;
    this.axis = context.view.axis === "round" ? "round" : "clock";
    this.band = true;
    const metric = context.focus.info.metric;
    const name = this.several ? "comparison" : context.file(context.focus);
    this.metric = metric;
    const switcher = choice("Against", [["clock", context.timeName], ["round", "round"]], this.axis, (axis) => {
      this.axis = axis;
      context.setAxis(axis);
      this.draw();
    });
    const band = h("input", { type: "checkbox", checked: true, onchange: () => { this.band = band.checked; this.draw(); } });
    const options = { sync: "progress" };
    this.accuracy = new LineChart({
      ...options, title: metric === "accuracy" ? "Test accuracy" : `Test ${metric}`, note: "",
      file: `${name}-${metric}`, height: 340, percent: metric === "accuracy", format: (value) => score(value, metric),
    });
    this.loss = new LineChart({ ...options, title: "Loss", note: this.several ? "on the test data, or while training where it was not tested" : "while training, and on the test data", file: `${name}-loss`, zero: true });
    this.bytes = new LineChart({ ...options, title: "Data sent", note: "by all workers together, up to each round", file: `${name}-bytes`, zero: true, format: dataSize });
    this.times = new LineChart({ ...options, title: "Round time", note: this.several ? "how long each round took" : "how long each round took, and how long a worker waited on average", file: `${name}-round-time`, zero: true, format: seconds });
    this.steps = new LineChart({ ...options, title: "Local steps", note: "mean of the workers, per round", file: `${name}-steps`, zero: true });
    this.behind = h("div", { class: "behind stack", role: "status", hidden: true });
    this.left = h("p", { class: "muted", hidden: true });
    this.charts = [this.accuracy, this.loss, this.bytes, this.times, this.steps];
    this.element = h(
      "div",
      { class: "stack" },
      h("div", { class: "row" }, switcher.element, h("label", { class: "check" }, band, "spread of the workers"), h("span", { class: "muted", text: "Drag in a chart to zoom." })),
      this.behind,
      this.left,
      this.accuracy.element,
      this.several ? this.comparison() : null,
      h("div", { class: "two" }, this.loss.element, this.bytes.element, this.times.element, this.steps.element),
    );
    this.lastSummary = 0;
  }

  comparison() {
    const targets = [...new Set(this.context.all.flatMap((run) => run.info.targets ?? []))].sort((a, b) => a - b);
    const targetText = (target) => (this.metric === "accuracy" ? percent(target, Number((100 * target).toFixed(6)) % 1 ? 1 : 0) : number(target));
    const of = (run) => run.summary;
    const reached = (run, target, kind) => {
      const table = of(run)?.[kind];
      const key = table && Object.keys(table).find((name) => Number(name) === target);
      return key ? table[key] : null;
    };
    const known = (run, text) => (of(run) ? text : "…");
    const column = (key, title, meaning, value, text) => ({ key, title, meaning, number: true, value, text: (run) => known(run, text(value(run), run)) });
    const { metric } = this;
    const test = `Test ${metric}, mean of the workers`;
    this.table = new DataTable({
      caption: "The runs in numbers",
      keyOf: (run) => run.run,
      columns: [
        { key: "name", title: "Run", meaning: "The name of the run's label, with its seed where it is needed", head_of_row: true, value: (run) => this.context.name(run) },
        { key: "status", title: "Status", meaning: "Whether the run is finished; the numbers of others are those so far", value: (run) => run.info.status },
        { key: "rounds", title: "Rounds", meaning: "Committed rounds", number: true, value: (run) => run.info.rounds, text: (run) => whole(run.info.rounds) },
        column("last", "Last test", `${test}: the last test alone, as in the list and in the legend`, (run) => of(run)?.last_accuracy, (value) => score(value, metric)),
        column("final", "Final", `${test}: mean of the last tests (evaluation.final_mean of them; only the last one if there are fewer than ten)`, (run) => of(run)?.final_accuracy, (value) => score(value, metric)),
        column("worst", "Worst", `Test ${metric} of the worker that ends worst, over the same tests as Final`, (run) => of(run)?.worst_worker_accuracy, (value) => score(value, metric)),
        ...targets.map((target) => column(`to ${target}`, `To ${targetText(target)}`, `${this.context.timeName} until the workers' mean test ${metric} first reaches ${targetText(target)}`, (run) => reached(run, target, "time_to_target"), (value) => (value === null ? "not reached" : seconds(value)))),
        ...targets.slice(-1).map((target) => column(`sent to ${target}`, `Sent to ${targetText(target)}`, `What all workers together had sent when ${targetText(target)} was first reached`, (run) => reached(run, target, "bytes_to_target"), (value) => (value === null ? "not reached" : dataSize(value)))),
        column("round", "Round", "Length of a round, mean of the rounds", (run) => of(run)?.round_time, seconds),
        column("waiting", "Waiting", "How long a worker waits in a round for the last one, mean of workers and rounds", (run) => of(run)?.mean_waiting_time, seconds),
        column("steps", "Steps", "Local steps of a worker in a round, mean of workers and rounds", (run) => of(run)?.mean_local_steps, (value) => number(value)),
        column("bytes", "Data sent", "What all workers together sent in the whole run", (run) => of(run)?.bytes_sent, dataSize),
      ],
    });
    this.differences = h("p", { class: "muted" });
    this.readDifferences();
    return h(
      "section",
      { class: "card stack", "aria-label": "The runs in numbers" },
      h("div", { class: "row spread" }, h("h2", { text: "In numbers" }), h("div", { class: "tools" }, h("button", { type: "button", text: "CSV", "aria-label": "Download the numbers as CSV", onclick: () => saveCsv(this.table.table(), "comparison-numbers") }))),
      this.table.element,
      this.differences,
    );
  }

  /** In which settings the runs really differ; labels do not say all of it. */
  async readDifferences() {
    try {
      const { text } = await get("differences", { run: this.context.all.map((run) => run.run) });
      setText(this.differences, text);
    } catch {
      setText(this.differences, "");
    }
  }

  /** What "final" is in these runs: the mean of how many tests. */
  nameFinal() {
    const tests = [...new Set(this.context.all.map((run) => run.summary?.final_tests).filter(Boolean))].sort((a, b) => a - b);
    if (!tests.length) return;
    this.table.setTitle("final", tests.at(-1) === 1 ? "Final (the last test)" : `Final (mean of ${tests.join(" or ")})`);
  }

  async summaries() {
    if (!this.several) return;
    this.table.set(this.context.all);
    const due = performance.now() - this.lastSummary > SUMMARY_EVERY || this.context.all.some((run) => !run.summary);
    if (!due || this.reading) return;
    this.reading = true;
    this.lastSummary = performance.now();
    for (const run of this.context.all) {
      if (run.summary && run.summary.rounds === run.info.rounds && run.summary.status === run.info.status) continue;
      try {
        await run.refreshSummary();
      } catch {
        // The connection's state is told elsewhere; the next round tries again.
      }
      this.table.set(this.context.all);
      this.nameFinal();
    }
    this.reading = false;
  }

  draw() {
    const all = this.context.all.slice(0, MOST_CURVES);
    const left = this.context.all.length - all.length;
    setHidden(this.left, !left);
    setText(this.left, `Curves of the first ${all.length} of ${this.context.all.length} runs; the table has all. Take runs out of the comparison to see the curves of others.`);
    const byRound = this.axis === "round";
    const xLabel = byRound ? "round" : `${this.context.timeName} (s)`;
    const marks = all.flatMap((run) => run.losses(byRound).map((loss) => (this.several ? { ...loss, text: `${this.context.name(run)}: ${loss.text}` } : loss)));
    const shared = { xLabel, xKey: this.axis, xFormat: byRound ? whole : seconds, marks };
    const x = (table) => (byRound ? table.round : table.clock) ?? [];
    const name = (run, what) => (this.several ? this.context.name(run) : what);
    const lines = (make) => all.flatMap((run) => make(run, this.context.look(run)).filter((line) => line.y.length));
    // Of many workers a few that do not learn would make the band fill the chart.
    const isMany = (run) => (run.tests.low ?? []).some(Number.isFinite);
    const spread = (run) => (!this.band ? {} : isMany(run) ? { low: run.tests.low, high: run.tests.high, band: MIDDLE } : { low: run.tests.worst ?? [], high: run.tests.best ?? [] });
    const some = all.some(isMany);
    const few = all.some((run) => !isMany(run));
    const reach = [few && "from the worst to the best worker", some && `${few ? "of many workers " : ""}${MIDDLE.words}`].filter(Boolean).join(", ");
    this.accuracy.card.setNote(`mean of the workers${this.band ? `; the band reaches ${reach}` : ""}; the legend has the last test, or the one at the pointer`);
    this.tellBehind();
    this.accuracy.set({
      ...shared,
      lines: lines((run, look) => [
        { name: name(run, "workers"), look, x: x(run.tests), y: run.tests.accuracy ?? [], ...spread(run) },
        ...(this.several || !this.band ? [] : this.stragglers(run, byRound)),
        ...(this.several || !(run.tests.mean_model_accuracy ?? []).some(Number.isFinite) ? [] : [{ name: "mean model", look: 1, x: x(run.tests), y: run.tests.mean_model_accuracy }]),
      ]),
    });
    this.loss.set({
      ...shared,
      lines: lines((run, look) => {
        const test = { name: name(run, "test"), look: this.several ? look : 1, x: x(run.tests), y: run.tests.loss ?? [] };
        const train = { name: name(run, "training"), look, x: x(run.rounds), y: run.rounds.train_loss ?? [] };
        const tested = test.y.some(Number.isFinite);
        return this.several ? [tested ? test : train] : tested ? [train, test] : [train];
      }),
    });
    this.bytes.set({ ...shared, lines: lines((run, look) => [{ name: name(run, "data sent"), look, x: x(run.rounds), y: sums(run.rounds.bytes_sent ?? []) }]) });
    this.times.set({
      ...shared,
      lines: lines((run, look) => [
        { name: name(run, "round"), look, x: x(run.rounds), y: run.rounds.round_time ?? [] },
        ...(this.several ? [] : [{ name: "waiting", look: 1, x: x(run.rounds), y: run.rounds.mean_waiting_time ?? [] }]),
      ]),
    });
    this.steps.set({ ...shared, lines: lines((run, look) => [{ name: name(run, "steps"), look, x: x(run.rounds), y: run.rounds.mean_local_steps ?? [] }]) });
    setHidden(this.steps.element, false);
  }

  /** The curves of the workers that are far behind, as thin lines. */
  stragglers(run, byRound) {
    const { tests, workers } = run.behind ?? { tests: { worker: [] }, workers: [] };
    const drawn = [...new Set(tests.worker)];
    const group = drawn.length < workers.length ? `${drawn.length} of ${workers.length} workers far behind` : drawn.length > 1 ? `${drawn.length} workers far behind` : `${run.name(drawn[0])}, far behind`;
    return drawn.map((worker) => {
      const rows = tests.worker.map((each, row) => (each === worker ? row : -1)).filter((row) => row >= 0);
      const column = (name) => rows.map((row) => tests[name][row]);
      return { name: run.name(worker), group, look: 0, thin: true, dash: [], x: column(byRound ? "round" : "clock"), y: column("accuracy") };
    });
  }

  tellBehind() {
    const { all, link } = this.context;
    const late = all.filter((run) => run.behind);
    setHidden(this.behind, !late.length);
    const key = late.map((run) => `${run.run} ${run.behind.text}`).join("\n");
    if (this.behindKey === key) return;
    this.behindKey = key;
    this.behind.replaceChildren(
      ...late.map((run) => h("p", {}, h("strong", { "aria-hidden": "true", text: "! " }), this.several ? `${this.context.name(run)}: ` : "", run.behind.text, " ", h("a", { href: link({ section: "workers", focus: run.run, round: null }), text: "Workers" }))),
    );
  }

  update() {
    this.draw();
    this.summaries();
  }

  destroy() {
    for (const chart of this.charts) chart.destroy();
  }
}
