// The first page: all runs, live ones first; some can be chosen to be compared.

import { h, setHidden, setText } from "../dom.js";
import { DataTable } from "../datatable.js";
import { ago, count, number, score, seconds, whole } from "../format.js";
import { statusBadge } from "../badges.js";

export class RunsView {
  constructor({ listing, link, open }) {
    this.chosen = new Set();
    this.search = "";
    this.open = open;
    this.rows = [];
    this.heading = h("h1", { text: "Runs", tabindex: "-1" });
    this.summary = h("p", { class: "muted" });
    const find = h("input", {
      type: "search", "aria-label": "Search the runs by name, folder, algorithm or status", placeholder: "Search …",
      oninput: (event) => { this.search = event.target.value.trim().toLowerCase(); this.render(); },
    });
    this.all = h("input", { type: "checkbox", "aria-label": "Choose all runs shown", onchange: () => this.chooseAll() });
    this.table = new DataTable({
      caption: "Runs, live ones first",
      className: "runs",
      keyOf: (row) => row.run,
      sort: null,
      rowData: (row) => ({ selected: String(this.chosen.has(row.run)) }),
      columns: [
        {
          key: "pick", title: "", head: h("div", {}, this.all), className: "pick", bare: true,
          node: (row, cell) => {
            if (!cell.firstChild) {
              cell.append(h("input", { type: "checkbox", "aria-label": `Choose ${row.label}, ${row.run}`, onchange: (event) => this.choose(row.run, event.target.checked) }));
            }
            cell.firstChild.checked = this.chosen.has(row.run);
          },
        },
        {
          key: "label", title: "Run", head_of_row: true, value: (row) => `${row.label} ${row.run}`,
          node: (row, cell) => {
            if (!cell.firstChild) cell.append(h("a", { class: "name" }), h("span", { class: "path" }));
            cell.firstChild.href = link(row.run);
            setText(cell.firstChild, `${row.label}${row.seed === null || row.seed === undefined ? "" : `, seed ${row.seed}`}`);
            setText(cell.lastChild, `${row.run === "." ? listing().folder : row.run}${row.problem ? `: ${row.problem}` : ""}`);
          },
        },
        { key: "status", title: "Status", bare: true, value: (row) => row.status, node: (row, cell) => statusBadge(cell, row) },
        {
          key: "progress", title: "Progress", bare: true, value: (row) => row.rounds,
          node: (row, cell) => {
            if (!cell.firstChild) cell.append(h("span", {}), h("div", { class: "meter", "aria-hidden": "true" }, h("div", {})));
            const known = row.planned_rounds ?? null;
            setText(cell.firstChild, known ? `round ${whole(row.rounds)} of ${whole(known)}` : count(row.rounds, "round"));
            const share = known ? row.rounds / known : row.horizon ? row.clock / row.horizon : null;
            setHidden(cell.lastChild, share === null || !row.live);
            cell.lastChild.firstChild.style.width = `${Math.min(100, 100 * (share ?? 0))}%`;
          },
        },
        { key: "accuracy", title: "Last test", number: true, value: (row) => row.accuracy, text: (row) => (row.metric === "accuracy" ? score(row.accuracy, row.metric) : `${number(row.accuracy, 4)} ${row.metric ?? ""}`) },
        { key: "clock", title: "Time", number: true, value: (row) => row.clock, text: (row) => seconds(row.clock) },
        { key: "workers", title: "Workers", number: true, value: (row) => row.workers, text: (row) => whole(row.workers) },
        { key: "kind", title: "Kind", value: (row) => (row.network ? "machines" : "simulated") },
        { key: "changed", title: "Changed", value: (row) => row.changed, text: (row) => ago(row.changed) },
      ],
    });
    this.compare = h("button", { type: "button", class: "main", text: "Compare", onclick: () => this.open(this.order()) });
    this.clear = h("button", { type: "button", text: "Clear", onclick: () => { this.chosen.clear(); this.render(); find.focus(); } });
    this.bar = h("div", { class: "actionbar row", role: "region", "aria-label": "Chosen runs", hidden: true }, h("span", {}), this.compare, this.clear);
    this.none = h("p", { class: "empty", hidden: true });
    this.element = h(
      "div",
      { class: "stack" },
      h("div", { class: "row spread" }, h("div", {}, this.heading, this.summary), find),
      h("div", { class: "card" }, this.none, this.table.element),
      this.bar,
    );
    this.listing = listing;
    this.update();
  }

  order() {
    return this.rows.filter((row) => this.chosen.has(row.run)).map((row) => row.run);
  }

  choose(run, on) {
    if (on) this.chosen.add(run);
    else this.chosen.delete(run);
    this.render();
  }

  chooseAll() {
    for (const row of this.shown()) {
      if (this.all.checked) this.chosen.add(row.run);
      else this.chosen.delete(row.run);
    }
    this.render();
  }

  shown() {
    if (!this.search) return this.rows;
    return this.rows.filter((row) => `${row.label} ${row.run} ${row.algorithm} ${row.status} seed ${row.seed}`.toLowerCase().includes(this.search));
  }

  update() {
    this.rows = this.listing().runs;
    const live = this.rows.filter((row) => row.live).length;
    setText(this.summary, `${count(this.rows.length, "run")}${live ? `, ${live} live` : ""}. Open one, or choose several to compare them.`);
    this.render();
  }

  render() {
    const shown = this.shown();
    this.table.set(shown);
    setHidden(this.none, shown.length > 0);
    setText(this.none, this.rows.length ? "No run matches the search." : "There is no run here yet. It appears by itself: fedhp run EXPERIMENT.toml --out FOLDER.");
    setHidden(this.table.element, shown.length === 0);
    const picked = this.order().length;
    setHidden(this.bar, picked === 0);
    setText(this.bar.firstChild, `${count(picked, "run")} chosen`);
    setText(this.compare, picked > 1 ? `Compare ${picked} runs` : "Open");
    const most = this.listing().most_watched;
    this.compare.disabled = picked > most;
    if (picked > most) setText(this.bar.firstChild, `${count(picked, "run")} chosen; at most ${most} can be compared at once`);
    this.all.checked = shown.length > 0 && shown.every((row) => this.chosen.has(row.run));
    this.all.indeterminate = !this.all.checked && shown.some((row) => this.chosen.has(row.run));
  }

  destroy() {}
}
