// Lines against time or round with uPlot: bands, marks, a legend that tells values, keyboard, zoom, export.

import { h, setHidden, setText, svg } from "./dom.js";
import { figureCard } from "./figure.js";
import { axisTexts, isNumber, MISSING, number, seconds, ticks } from "./format.js";
import { colors, dashOf, faded, font, onThemeChange } from "./theme.js";

const FEW_POINTS = 30; // so few are marked one by one
const MOST_MARKS = 4; // that are named below a chart
const WORST_TO_BEST = { low: "worst", high: "best", words: "from the worst to the best worker" };
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7];

/** Values by x, each x once and in order. */
function tidy(line) {
  const result = { x: [], y: [], low: line.low ? [] : null, high: line.high ? [] : null };
  let last = -Infinity;
  line.x.forEach((x, index) => {
    if (!isNumber(x) || x <= last) return;
    last = x;
    result.x.push(x);
    result.y.push(line.y[index] ?? null);
    result.low?.push(line.low[index] ?? null);
    result.high?.push(line.high[index] ?? null);
  });
  return { ...line, ...result };
}

/** The first place in rising values that is not below x. */
function placeOf(values, x) {
  let [from, to] = [0, values.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] < x) from = middle + 1;
    else to = middle;
  }
  return from;
}

/** The known point of a line that is nearest to x: the dot marks it, and the legend says it. */
function pointAt(line, x) {
  let after = placeOf(line.x, x);
  let before = after - 1;
  while (before >= 0 && !isNumber(line.y[before])) before -= 1;
  while (after < line.x.length && !isNumber(line.y[after])) after += 1;
  if (before < 0 && after === line.x.length) return null;
  const first = after === line.x.length || (before >= 0 && x - line.x[before] <= line.x[after] - x);
  const index = first ? before : after;
  return { x: line.x[index], value: line.y[index], low: line.low?.[index], high: line.high?.[index] };
}

/** Lines that are shown and hidden together: one entry of the legend. */
const entryOf = (line) => line.group ?? line.name;

export class LineChart {
  /** options: title, note, file, height, format(value), sync, zero (y from 0), top (y up to at least) */
  constructor(options) {
    this.options = { height: 260, format: number, zero: false, ...options };
    this.lines = [];
    this.hidden = new Set();
    this.xLabel = "";
    this.xFormat = number;
    this.plot = null;
    this.cursorX = null;
    this.zoomed = false;
    this.holder = h("div", {
      class: "chart",
      tabindex: "0",
      role: "group",
      "aria-roledescription": "chart",
      onkeydown: (event) => this.onKey(event),
      onblur: () => this.moveTo(null),
    });
    this.legend = h("ul", { class: "legend" });
    this.marksNote = h("p", { class: "marks", hidden: true });
    this.happened = [];
    this.spoken = h("p", { class: "sr", "aria-live": "polite" });
    this.reset = h("button", { type: "button", text: "Whole range", hidden: true, onclick: () => this.unzoom() });
    this.none = h("p", { class: "muted", text: options.empty ?? "Nothing recorded yet.", hidden: true });
    this.card = figureCard({
      ...options,
      controls: [...(options.controls ?? []), this.reset],
      picture: () => this.picture(),
      table: () => this.table(),
    });
    this.card.body.append(this.none, this.holder, this.legend, this.marksNote, this.spoken);
    this.element = this.card.element;
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.holder);
    this.forget = onThemeChange(() => {
      this.rebuild();
      this.fillLegend();
    });
  }

  /**
   * lines: [{name, x, y, low, high, look (number of its colour and dash), quiet, thin, band (what low
   * and high are), group (lines with one entry in the legend)}] on one axis;
   * marks: [{x, text}], what happened there.
   */
  set({ lines, marks = [], xLabel = this.xLabel, xFormat = this.xFormat, xKey = "" }) {
    const shape = (some) => some.map((line) => `${line.name}\t${entryOf(line)}\t${line.look}\t${Boolean(line.low)}\t${line.dash}`).join("\n");
    const before = `${this.xKey}\n${this.xLabel}\n${shape(this.lines)}\n${this.crowded}`;
    this.lines = lines.map(tidy);
    this.happened = marks.filter((mark) => isNumber(mark.x));
    this.crowded = Math.max(0, ...this.lines.map((line) => line.x.length)) > FEW_POINTS;
    this.xLabel = xLabel;
    this.xFormat = xFormat;
    this.xKey = xKey;
    const empty = !this.lines.some((line) => line.y.some(isNumber));
    setHidden(this.none, !empty);
    setHidden(this.holder, empty);
    setHidden(this.legend, empty);
    const same = before === `${this.xKey}\n${this.xLabel}\n${shape(this.lines)}\n${this.crowded}`;
    if (!empty && this.plot && same) {
      const scale = this.plot.scales.x;
      const range = this.zoomed ? { min: scale.min, max: scale.max } : null;
      this.plot.setData(this.joined());
      if (range) this.plot.setScale("x", range);
    } else {
      this.rebuild();
      this.fillLegend();
    }
    this.values();
    this.nameMarks();
    this.card.refresh();
    this.holder.setAttribute("aria-label", `${this.options.title}: ${this.summary()}. Arrow keys read the values.`);
  }

  summary() {
    return this.lines
      .map((line) => {
        const last = pointAt(line, Infinity);
        return last ? `${line.name} ${this.options.format(last.value)}` : `${line.name} no value`;
      })
      .join(", ");
  }

  nameMarks() {
    const named = this.happened.slice(-MOST_MARKS);
    const more = this.happened.length - named.length;
    setHidden(this.marksNote, !named.length);
    setText(this.marksNote, `✕ ${more ? `${more} earlier; ` : ""}${named.map((mark) => `${this.where(mark.x)} ${mark.text}`).join("; ")}`);
  }

  /** A place on the axis in words. */
  where(x) {
    return this.whole ? `in round ${this.xFormat(x)}` : `at ${this.xFormat(x)}`;
  }

  joined() {
    const tables = this.lines.map((line) => [line.x, line.y, ...(line.low ? [line.high, line.low] : [])]);
    return tables.length === 1 ? tables[0] : uPlot.join(tables);
  }

  lineColor(line) {
    const { series, quiet } = colors();
    return line.quiet ? quiet : series[line.look % series.length];
  }

  dash(line) {
    return line.dash ?? dashOf(line.look);
  }

  lineWidth(line) {
    return line.thin ? 1 : line.quiet ? 1.5 : 2;
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    this.zoomed = false;
    setHidden(this.reset, true);
    const width = this.holder.clientWidth;
    if (!width || this.holder.hidden || !this.lines.length) return;
    const theme = colors();
    const series = [{}];
    const bands = [];
    this.lines.forEach((line, index) => {
      const color = this.lineColor(line);
      const show = !this.hidden.has(entryOf(line));
      series.push({
        label: line.name, show, spanGaps: true, stroke: color, width: this.lineWidth(line), dash: this.dash(line),
        points: { show: !this.crowded && !line.thin, size: 5, fill: color, stroke: color }, line: index,
      });
      if (line.low) {
        const edge = { show, spanGaps: true, stroke: "transparent", width: 0, points: { show: false }, line: index };
        series.push({ ...edge }, { ...edge });
        bands.push({ series: [series.length - 2, series.length - 1], fill: faded(color, 0.15) });
      }
    });
    const axis = { stroke: theme.quiet, grid: { stroke: theme.grid, width: 1 }, ticks: { stroke: theme.line, width: 1, size: 5 }, font: font(12), labelFont: font(12), labelGap: 2 };
    this.plot = new uPlot(
      {
        width,
        height: this.options.height,
        legend: { show: false },
        padding: [10, 12, 0, 0],
        cursor: {
          points: { size: 7 },
          dataIdx: (plot, series, closest, x) => this.dotAt(plot, series, closest, x),
          drag: { x: true, y: false },
          sync: this.options.sync ? { key: `${this.options.sync} ${this.xKey}`, scales: ["x", null] } : undefined,
        },
        scales: { x: { time: false }, y: { range: (_, low, high) => this.range(low, high) } },
        series,
        bands,
        axes: [
          { ...axis, label: this.xLabel, labelSize: 22, size: 32, ...(this.whole ? { incrs: WHOLE } : {}), values: (_, splits) => splits.map((value) => this.tick(value)) },
          { ...axis, size: (_, values) => 18 + Math.max(0, ...(values ?? []).map((text) => text.length)) * 7, values: (_, splits) => this.marks(splits) },
        ],
        hooks: {
          setCursor: [(plot) => this.onCursor(plot)],
          draw: [
            (plot) => {
              const { left, top, width: wide, height } = plot.bbox;
              const [low, high] = [plot.scales.x.min, plot.scales.x.max];
              this.paintMarks(plot.ctx, { low, high, top, bottom: top + height, scale: devicePixelRatio, at: (x) => left + ((x - low) / (high - low || 1)) * wide });
            },
          ],
          setScale: [
            (plot, key) => {
              if (key !== "x" || !plot.data[0]?.length) return;
              const { min, max } = plot.scales.x;
              const data = plot.data[0];
              this.zoomed = min > data[0] + 1e-9 || max < data[data.length - 1] - 1e-9;
              setHidden(this.reset, !this.zoomed);
            },
          ],
        },
      },
      this.joined(),
      this.holder,
    );
  }

  get whole() {
    return this.xLabel === "round";
  }

  /** The texts of the y axis: equal decimals where the format is seconds or percent. */
  marks(values) {
    const known = values.filter(isNumber);
    if (this.options.format === seconds) return axisTexts(known, { unit: " s" });
    if (this.options.percent) return axisTexts(known, { unit: " %", factor: 100 });
    if (this.options.format === number) return axisTexts(known);
    return known.map((value) => this.options.format(value));
  }

  tick(value) {
    return Number(value.toPrecision(8)).toLocaleString("en");
  }

  range(low, high) {
    if (!isNumber(low) || !isNumber(high)) return [0, 1];
    const bottom = this.options.zero ? Math.min(0, low) : low;
    const top = Math.max(high, this.options.top ?? -Infinity);
    const room = (top - bottom || Math.abs(top) || 1) * 0.06;
    return [this.options.zero && bottom === 0 ? 0 : bottom - room, top + room];
  }

  fit() {
    const width = this.holder.clientWidth;
    if (!width) return;
    if (!this.plot) this.rebuild();
    else if (this.plot.width !== width) this.plot.setSize({ width, height: this.options.height });
  }

  unzoom() {
    const data = this.plot.data[0];
    this.plot.setScale("x", { min: data[0], max: data[data.length - 1] });
    this.holder.focus();
  }

  /** Where uPlot puts the dot of a series: on the point that the legend tells. */
  dotAt(plot, series, closest, x) {
    const line = this.lines[plot.series[series].line];
    const point = line && pointAt(line, x);
    return point ? placeOf(plot.data[0], point.x) : series ? null : closest;
  }

  onCursor(plot) {
    this.cursorX = plot.cursor.idx === null || plot.cursor.idx === undefined ? null : plot.posToVal(plot.cursor.left, "x");
    this.values();
  }

  /** What happened, as dashed lines from top to bottom. */
  paintMarks(context, { low, high, top, bottom, at, scale = 1 }) {
    const shown = this.happened.filter((mark) => mark.x >= low && mark.x <= high);
    if (!shown.length) return;
    context.save();
    context.strokeStyle = context.fillStyle = colors().bad;
    context.lineWidth = scale;
    context.setLineDash([3 * scale, 3 * scale]);
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = font(11 * scale, "700");
    for (const mark of shown) {
      const x = at(mark.x);
      context.beginPath();
      context.moveTo(x, top + 9 * scale);
      context.lineTo(x, bottom);
      context.stroke();
      context.fillText("✕", x, top + 3 * scale);
    }
    context.restore();
  }

  onKey(event) {
    const data = this.plot?.data[0];
    if (!data?.length) return;
    const at = this.cursorX === null ? -1 : this.plot.cursor.idx;
    const places = {
      ArrowRight: at < 0 ? data.length - 1 : Math.min(at + 1, data.length - 1),
      ArrowLeft: at < 0 ? data.length - 1 : Math.max(at - 1, 0),
      Home: 0,
      End: data.length - 1,
    };
    if (event.key === "Escape") return this.moveTo(null);
    if (!(event.key in places)) return;
    event.preventDefault();
    const x = data[places[event.key]];
    this.moveTo(x);
    const read = this.lines
      .map((line) => [line.name, pointAt(line, x)])
      .filter(([, known]) => known)
      .map(([name, known]) => `${name} ${this.options.format(known.value)}${known.x === x ? "" : ` ${this.where(known.x)}`}`);
    setText(this.spoken, `${this.xLabel} ${this.xFormat(x)}: ${read.join(", ")}`);
  }

  moveTo(x) {
    if (!this.plot) return;
    const left = x === null ? -10 : this.plot.valToPos(x, "x");
    this.plot.setCursor({ left, top: x === null ? -10 : this.plot.bbox.height / (2 * devicePixelRatio) });
  }

  fillLegend() {
    this.entries = new Map();
    for (const line of this.lines) this.entries.set(entryOf(line), [...(this.entries.get(entryOf(line)) ?? []), line]);
    this.legend.replaceChildren(
      ...[...this.entries].map(([name, [line]]) => {
        const color = this.lineColor(line);
        const sample = svg("svg", { width: 26, height: 12, "aria-hidden": "true" });
        if (line.low) sample.append(svg("rect", { x: 0, y: 1, width: 26, height: 10, fill: color, opacity: 0.18 }));
        sample.append(svg("line", { x1: 0, y1: 6, x2: 26, y2: 6, stroke: color, "stroke-width": this.lineWidth(line) * 1.1, "stroke-dasharray": this.dash(line).join(" ") }));
        const button = h(
          "button",
          {
            type: "button",
            "aria-pressed": String(!this.hidden.has(name)),
            title: line.low ? `The band reaches ${(line.band ?? WORST_TO_BEST).words}. Click to hide or show.` : "Click to hide or show",
            onclick: () => {
              if (!this.hidden.delete(name)) this.hidden.add(name);
              button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
              this.plot?.series.forEach((each, index) => {
                if (index && entryOf(this.lines[each.line]) === name) this.plot.setSeries(index, { show: !this.hidden.has(name) });
              });
            },
          },
          sample,
          h("span", { text: name }),
          h("span", { class: "value" }),
        );
        return h("li", {}, button);
      }),
    );
  }

  values() {
    const slots = this.legend.querySelectorAll(".value");
    const { format } = this.options;
    [...(this.entries ?? new Map()).keys()].forEach((name, index) => {
      if (!slots[index]) return;
      const lines = this.lines.filter((line) => entryOf(line) === name);
      const points = lines.map((line) => pointAt(line, this.cursorX ?? Infinity)).filter(Boolean);
      if (!points.length) return setText(slots[index], MISSING);
      const [known] = points;
      const values = points.map((point) => point.value);
      const text = lines.length > 1 ? `${format(Math.min(...values))} to ${format(Math.max(...values))}` : format(known.value);
      const band = isNumber(known.low) ? ` (${format(known.low)} to ${format(known.high)})` : "";
      setText(slots[index], this.cursorX === null ? text : `${text}${band} ${this.where(known.x)}`);
    });
  }

  table() {
    const xs = [...new Set(this.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const columns = [this.xLabel];
    const getters = [];
    for (const line of this.lines) {
      const places = new Map(line.x.map((x, index) => [x, index]));
      const band = line.band ?? WORST_TO_BEST;
      const parts = line.low ? [["", line.y], [` ${band.low}`, line.low], [` ${band.high}`, line.high]] : [["", line.y]];
      for (const [suffix, values] of parts) {
        columns.push(line.name + suffix);
        getters.push((x) => (places.has(x) ? values[places.get(x)] : null));
      }
    }
    return { columns, rows: xs.map((x) => [x, ...getters.map((value) => value(x))]) };
  }

  /** The chart as it is zoomed, drawn by hand for the downloads, with its legend. */
  picture() {
    const shown = this.lines.filter((line) => !this.hidden.has(entryOf(line)));
    const width = Math.max(this.holder.clientWidth, 480);
    const legendHeight = 22 * Math.ceil(new Set(shown.map(entryOf)).size / 3);
    const height = this.options.height + legendHeight;
    return { width, height, draw: (context) => this.drawPicture(context, shown, width, this.options.height) };
  }

  drawPicture(context, shown, width, height) {
    const theme = colors();
    const xs = shown.flatMap((line) => line.x);
    const scale = this.plot?.scales.x;
    const [left, right] = scale ? [scale.min, scale.max] : [Math.min(...xs), Math.max(...xs)];
    let [low, high] = [Infinity, -Infinity];
    for (const line of shown) {
      for (const values of [line.y, line.low ?? [], line.high ?? []]) {
        values.forEach((value, index) => {
          if (!isNumber(value) || line.x[index] < left || line.x[index] > right) return;
          low = Math.min(low, value);
          high = Math.max(high, value);
        });
      }
    }
    const [bottom, top] = this.range(low, high);
    const yTicks = ticks(bottom, top, 5);
    context.font = font(12);
    const yTexts = this.marks(yTicks);
    const margin = 12 + Math.max(...yTexts.map((text) => context.measureText(text).width));
    const [plotWidth, plotHeight] = [width - margin - 10, height - 50];
    const px = (x) => margin + ((x - left) / (right - left || 1)) * plotWidth;
    const py = (y) => 6 + plotHeight - ((y - bottom) / (top - bottom || 1)) * plotHeight;
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const [index, value] of yTicks.entries()) {
      context.strokeStyle = theme.grid;
      context.beginPath();
      context.moveTo(margin, py(value));
      context.lineTo(margin + plotWidth, py(value));
      context.stroke();
      context.fillStyle = theme.quiet;
      context.fillText(yTexts[index], margin - 6, py(value));
    }
    context.textAlign = "center";
    for (const value of ticks(left, right, Math.max(3, plotWidth / 90)).filter((each) => !this.whole || Number.isInteger(each))) {
      context.strokeStyle = theme.grid;
      context.beginPath();
      context.moveTo(px(value), 6);
      context.lineTo(px(value), 6 + plotHeight);
      context.stroke();
      context.fillStyle = theme.quiet;
      context.fillText(this.tick(value), px(value), plotHeight + 20);
    }
    context.fillText(this.xLabel, margin + plotWidth / 2, plotHeight + 38);
    context.save();
    context.beginPath();
    context.rect(margin, 0, plotWidth, plotHeight + 8);
    context.clip();
    for (const line of shown) {
      const color = this.lineColor(line);
      const points = line.x.map((x, index) => [x, line.y[index], line.low?.[index], line.high?.[index]]).filter((point) => isNumber(point[1]));
      const banded = points.filter((point) => isNumber(point[2]) && isNumber(point[3]));
      if (banded.length > 1) {
        context.fillStyle = faded(color, 0.15);
        context.beginPath();
        banded.forEach(([x, , , best], index) => (index ? context.lineTo(px(x), py(best)) : context.moveTo(px(x), py(best))));
        [...banded].reverse().forEach(([x, , worst]) => context.lineTo(px(x), py(worst)));
        context.closePath();
        context.fill();
      }
      context.strokeStyle = color;
      context.lineWidth = this.lineWidth(line);
      context.setLineDash(this.dash(line));
      context.beginPath();
      points.forEach(([x, y], index) => (index ? context.lineTo(px(x), py(y)) : context.moveTo(px(x), py(y))));
      context.stroke();
      context.setLineDash([]);
    }
    context.restore();
    this.paintMarks(context, { low: left, high: right, top: 6, bottom: 6 + plotHeight, at: px });
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.font = font(12);
    [...new Map(shown.map((line) => [entryOf(line), line])).entries()].forEach(([name, line], index) => {
      const [x, y] = [margin + ((index % 3) * plotWidth) / 3, height + 8 + 22 * Math.floor(index / 3)];
      context.strokeStyle = this.lineColor(line);
      context.lineWidth = 2;
      context.setLineDash(this.dash(line));
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x + 26, y);
      context.stroke();
      context.setLineDash([]);
      context.fillStyle = theme.ink;
      context.fillText(name, x + 33, y);
    });
  }

  destroy() {
    this.observer.disconnect();
    this.forget();
    this.plot?.destroy();
  }
}
