// The workers of a round in a table; a worker's whole history in a dialog.

import { get, order } from "../api.js";
import { announce, h, setText } from "../dom.js";
import { DataTable } from "../datatable.js";
import { eventBadge, workerBadge } from "../badges.js";
import { saveCsv } from "../figure.js";
import { clockTime, dataSize, device, isNumber, MISSING, number, score, seconds, whole, words } from "../format.js";
import { LineChart } from "../linechart.js";

export class Workers {
  constructor(context) {
    this.context = context;
    this.usesRound = true;
    this.search = "";
    const { focus } = context;
    const metric = focus.info.metric;
    const numeric = (key, title, text) => ({ key, title, number: true, value: (row) => row[key] ?? null, text: (row) => text(row[key]) });
    this.states = h("p", { class: "muted", role: "status" });
    this.columns = [
      {
        key: "name", title: "Worker", head_of_row: true, value: (row) => row.name ?? focus.name(row.worker),
        node: (row, cell) => {
          if (!cell.firstChild) cell.append(h("button", { type: "button", class: "link", onclick: () => this.open(row.worker) }));
          setText(cell.firstChild, String(row.name ?? focus.name(row.worker)));
        },
      },
      { key: "device", title: "Device", value: (row) => row.device, text: (row) => device(row.device) },
      { key: "state", title: "State", value: (row) => words(row.state), node: (row, cell) => workerBadge(cell, row.state) },
      { key: "role", title: "Role", value: (row) => row.role ?? null, text: (row) => (row.role ? words(row.role) : "") },
      numeric("steps", "Steps", whole),
      numeric("step_time", "Step", seconds),
      { key: "bandwidth", title: "Bandwidth", number: true, value: (row) => row.bandwidth ?? null, text: (row) => (isNumber(row.bandwidth) ? `${dataSize(row.bandwidth)}/s` : MISSING) },
      numeric("compute_time", "Computes", seconds),
      numeric("transfer_time", "Transfers", seconds),
      numeric("waiting_time", "Waits", seconds),
      numeric("train_loss", "Loss", (value) => number(value)),
      { key: "accuracy", title: metric === "accuracy" ? "Accuracy" : words(metric), number: true, value: (row) => row.accuracy ?? null, text: (row) => `${score(row.accuracy, metric)}${this.isOld(row) ? ` in round ${whole(row.tested)}` : ""}` },
      numeric("links", "Links", whole),
      numeric("samples", "Samples", whole),
    ];
    const find = h("input", { type: "search", "aria-label": "Search workers by name, device or state", placeholder: "Search …", oninput: (event) => { this.search = event.target.value.trim().toLowerCase(); this.draw(); } });
    this.holder = h("div", {});
    this.title = h("h2", { text: "Workers" });
    this.element = h(
      "section",
      { class: "card stack", "aria-label": "Workers" },
      h("div", { class: "row spread" }, h("div", {}, this.title, this.states), h("div", { class: "row" }, find, h("div", { class: "tools" }, h("button", { type: "button", text: "CSV", "aria-label": "Download the workers as CSV", onclick: () => this.table && saveCsv(this.table.table(), `${context.file(focus)}-round-${context.round()}-workers`) })))),
      this.holder,
    );
    if (context.view.worker !== null) this.open(context.view.worker);
  }

  async update() {
    const { focus } = this.context;
    const round = this.context.round();
    const key = round || undefined;
    const answer = await focus.workers.get(key);
    if (round !== this.context.round()) return;
    this.rows = answer.workers ?? answer;
    this.shownRound = answer.round ?? round;
    setText(this.title, this.shownRound ? `Workers in round ${this.shownRound}` : "Workers");
    this.draw();
  }

  draw() {
    if (!this.rows) return;
    // Columns that this run does not have are left out.
    const present = this.columns.filter((column) => ["name", "state", "device"].includes(column.key) || this.rows.some((row) => row[column.key] !== null && row[column.key] !== undefined));
    for (const key of new Set(this.rows.flatMap((row) => Object.keys(row.measures ?? {})))) {
      present.push({ key, title: words(key), number: true, value: (row) => row.measures?.[key] ?? null, text: (row) => number(row.measures?.[key]) });
    }
    const key = present.map((column) => column.key).join(" ");
    if (!this.table || this.tableKey !== key) {
      const { sort = "name", descending = false } = this.table ?? {};
      this.tableKey = key;
      this.table = new DataTable({ caption: "Workers: a name opens the worker's history", columns: present, keyOf: (row) => row.worker, sort, descending });
      this.holder.replaceChildren(this.table.element);
    }
    this.lastTested = this.rows.reduce((last, row) => Math.max(last, row.tested ?? 0), 0);
    const shown = this.search ? this.rows.filter((row) => `${row.name} ${row.device} ${device(row.device)} ${row.state}`.toLowerCase().includes(this.search)) : this.rows;
    this.table.set(shown);
    const states = new Map();
    for (const row of this.rows) states.set(row.state, (states.get(row.state) ?? 0) + 1);
    setText(this.states, [...states].map(([state, number_of]) => `${whole(number_of)} ${words(state)}`).join(", "));
  }

  /** Whether a worker's last test is older than that of others. */
  isOld(row) {
    return isNumber(row.tested) && row.tested < this.lastTested;
  }

  async open(worker) {
    const { focus } = this.context;
    if (this.dialog) return;
    const title = h("h2", { text: focus.name(worker), id: "worker-title" });
    const body = h("div", { class: "stack" }, h("p", { class: "muted", text: "Reading …" }));
    const close = h("button", { type: "button", text: "Close", onclick: () => dialog.close() });
    const drain = focus.info.actions?.includes("drain") ? h("button", { type: "button", class: "danger", text: "Drain …", onclick: () => this.drain(worker) }) : null;
    const dialog = h("dialog", { "aria-labelledby": "worker-title" }, h("div", { class: "stack" }, h("div", { class: "row spread" }, title, h("div", { class: "row" }, drain, close)), body));
    let charts = [];
    dialog.addEventListener("close", () => {
      for (const chart of charts) chart.destroy();
      dialog.remove();
      this.dialog = null;
      this.context.setWorker(null);
    });
    document.body.append(dialog);
    this.dialog = dialog;
    dialog.showModal();
    this.context.setWorker(worker);
    try {
      const answer = await get("worker", { run: focus.run, worker });
      if (!dialog.isConnected) return;
      body.replaceChildren();
      charts = this.history(answer, body);
    } catch (error) {
      body.replaceChildren(h("p", { class: "error", text: `${error.message}. ${error.help ?? ""}` }));
    }
  }

  history(answer, body) {
    const { focus } = this.context;
    const metric = focus.info.metric;
    const file = `${this.context.file(focus)}-worker-${answer.worker}`;
    const rounds = answer.rounds ?? {};
    const column = (...names) => names.map((name) => rounds[name]).find(Boolean) ?? [];
    const shared = { xLabel: "round", xFormat: whole, marks: focus.losses() };
    const charts = [];
    const chart = (options, lines) => {
      const made = new LineChart({ level: "h3", height: 180, zero: true, ...options });
      charts.push(made);
      grid.append(made.element);
      made.set({ ...shared, lines: lines.filter((line) => line.y.some(isNumber)) });
    };
    const row = this.rows?.find((each) => each.worker === answer.worker);
    const state = h("p", {}, `${device(answer.device)} `);
    if (row) workerBadge(state, row.state);
    const grid = h("div", { class: "two" });
    body.append(state, grid);
    chart({ title: metric === "accuracy" ? "Own test accuracy" : `Own test ${metric}`, file: `${file}-${metric}`, zero: false, percent: metric === "accuracy", format: (value) => score(value, metric), empty: "Not tested yet." }, [{ name: "this worker", look: 0, x: answer.tests?.round ?? [], y: answer.tests?.accuracy ?? [] }, { name: "all workers", look: 1, quiet: true, x: focus.tests.round, y: focus.tests.accuracy ?? [] }]);
    chart({ title: "Where its time goes", file: `${file}-times`, format: seconds }, [{ name: "computes", look: 0, x: column("round"), y: column("compute_time") }, { name: "communicates", look: 1, x: column("round"), y: column("transfer_time") }, { name: "waits", look: 7, x: column("round"), y: column("waiting_time") }]);
    chart({ title: "Local steps", file: `${file}-steps` }, [{ name: "steps", look: 2, dash: [], x: column("round"), y: column("local_steps", "steps") }]);
    chart({ title: "Seconds per step", file: `${file}-speed`, format: seconds }, [{ name: "step", look: 3, dash: [], x: column("round"), y: column("step_time") }]);
    chart({ title: "Bandwidth", file: `${file}-bandwidth`, format: (value) => `${dataSize(value)}/s` }, [{ name: "bandwidth", look: 4, dash: [], x: column("round"), y: column("bandwidth") }]);
    chart({ title: "Training loss", file: `${file}-loss` }, [{ name: "loss", look: 6, dash: [], x: column("round"), y: column("train_loss") }]);
    const events = answer.events ?? [];
    body.append(h("h3", { text: "Events" }));
    if (!events.length) body.append(h("p", { class: "muted", text: "None." }));
    else {
      body.append(
        h("ul", { class: "stack log", tabindex: "0", "aria-label": "Events of this worker" }, [...events].reverse().slice(0, 300).map((event) => {
          const item = h("li", { class: "row" }, h("span", { class: "muted", text: isNumber(event.at) ? clockTime(event.at) : isNumber(event.round) ? `round ${event.round}` : "" }));
          eventBadge(item, event.kind);
          item.append(h("span", { text: event.text }));
          return item;
        })),
      );
    }
    return charts;
  }

  async drain(worker) {
    const { focus } = this.context;
    const name = focus.name(worker);
    try {
      const answer = await order("drain", { run: focus.run, worker: name }, { title: `Drain ${name}?`, text: "It finishes its round and leaves the run. The others go on.", button: "Drain" });
      announce(answer?.text ?? `${name} was told to leave.`, { now: true });
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  }

  destroy() {
    this.dialog?.close();
  }
}

