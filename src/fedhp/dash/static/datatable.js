// A table that can be sorted; when the numbers change, only the cells that changed are written.

import { h, setText } from "./dom.js";

const MOST_ROWS = 200; // at first; a button shows the rest

export class DataTable {
  /** columns: [{key, title, meaning, value(row), text(row), node(row, cell), number, wide}], keyOf(row). */
  constructor({ columns, keyOf, caption, sort = null, descending = false, className = "", rowData = null, unsorted = false }) {
    Object.assign(this, { columns, keyOf, sort, descending, rowData });
    this.rows = [];
    this.cells = new Map();
    this.most = MOST_ROWS;
    this.body = h("tbody", {});
    this.headers = columns.map((column) => {
      const sortable = !unsorted && column.value;
      return h(
        "th",
        { scope: "col", class: column.number ? "number" : "", ...(column.meaning ? { title: column.meaning } : {}) },
        sortable ? h("button", { type: "button", text: column.title, onclick: () => this.sortBy(column) }) : column.head ?? column.title,
      );
    });
    this.more = h("button", { type: "button", hidden: true, onclick: () => { this.most = Infinity; this.render(); } });
    const table = h("table", { class: className }, h("caption", { class: "sr", text: caption }), h("thead", {}, h("tr", {}, this.headers)), this.body);
    this.element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${caption} (table)` }, table, this.more);
    this.markSort();
  }

  sortBy(column) {
    this.descending = this.sort === column.key ? !this.descending : Boolean(column.number);
    this.sort = column.key;
    this.markSort();
    this.render();
  }

  markSort() {
    this.columns.forEach((column, index) => {
      const state = column.key === this.sort ? (this.descending ? "descending" : "ascending") : "none";
      if (column.value && this.sort !== undefined) this.headers[index].setAttribute("aria-sort", state);
    });
  }

  /** Another title of a column, once it is known. */
  setTitle(key, title) {
    const index = this.columns.findIndex((column) => column.key === key);
    this.columns[index].title = title;
    setText(this.headers[index].querySelector("button") ?? this.headers[index], title);
    for (const { cells } of this.cells.values()) cells[index].dataset.title = title;
  }

  set(rows) {
    this.rows = rows;
    this.render();
  }

  sorted() {
    const column = this.columns.find((each) => each.key === this.sort);
    if (!column) return this.rows;
    const sign = this.descending ? -1 : 1;
    return [...this.rows].sort((one, other) => {
      const [a, b] = [column.value(one), column.value(other)];
      const [missingA, missingB] = [a === null || a === undefined, b === null || b === undefined];
      if (missingA || missingB) return missingA - missingB; // unknown ones last, either way
      return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    });
  }

  render() {
    const order = this.sorted();
    const shown = order.slice(0, this.most);
    this.more.hidden = shown.length === order.length;
    if (!this.more.hidden) setText(this.more, `Show all ${order.length.toLocaleString("en")} rows`);
    const used = new Set();
    let place = this.body.firstChild;
    for (const row of shown) {
      const key = this.keyOf(row);
      used.add(key);
      let line = this.cells.get(key);
      if (!line) {
        const cells = this.columns.map((column) =>
          h(column.head_of_row ? "th" : "td", {
            class: [column.number && "number", column.wide && "text", column.className].filter(Boolean).join(" "),
            ...(column.head_of_row ? { scope: "row" } : {}),
            ...(column.title && !column.head_of_row && !column.bare ? { "data-title": column.title } : {}),
          }),
        );
        line = { element: h("tr", {}, cells), cells };
        this.cells.set(key, line);
      }
      this.columns.forEach((column, index) => {
        if (column.node) column.node(row, line.cells[index]);
        else setText(line.cells[index], column.text ? column.text(row) : String(column.value(row) ?? ""));
      });
      if (this.rowData) Object.assign(line.element.dataset, this.rowData(row));
      // Rows in place are not touched: moving one would take the focus from it.
      if (place === line.element) place = place.nextSibling;
      else this.body.insertBefore(line.element, place);
    }
    for (const [key, line] of this.cells) {
      if (!used.has(key)) {
        line.element.remove();
        this.cells.delete(key);
      }
    }
  }

  /** What is shown, for a CSV. */
  table() {
    const columns = this.columns.filter((column) => column.value);
    return { columns: columns.map((column) => column.title), rows: this.sorted().map((row) => columns.map((column) => column.value(row) ?? null)) };
  }
}
