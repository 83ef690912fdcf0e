// The part of CanvasRenderingContext2D that the figures use, written down as SVG: a figure is drawn
// by one function, on the screen, as PNG and as SVG.

const measuring = document.createElement("canvas").getContext("2d");

const XML = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escape = (text) =>
  String(text)
    // Characters that XML does not allow at all.
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "�")
    .replace(/[&<>"]/g, (letter) => XML[letter]);
const short = (value) => Number(value.toFixed(2)).toString();

export class SvgContext {
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.parts = [];
    this.stack = [];
    this.path = "";
    this.state = {
      fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, font: "12px sans-serif", textAlign: "left",
      textBaseline: "alphabetic", globalAlpha: 1, dash: [], shift: [0, 0], turn: 0, lineCap: "butt", lineJoin: "miter", clip: null,
    };
    this.clips = 0;
    for (const name of ["fillStyle", "strokeStyle", "lineWidth", "font", "textAlign", "textBaseline", "globalAlpha", "lineCap", "lineJoin"]) {
      Object.defineProperty(this, name, { get: () => this.state[name], set: (value) => (this.state[name] = value) });
    }
  }

  save() { this.stack.push({ ...this.state, shift: [...this.state.shift] }); }
  restore() { this.state = this.stack.pop(); }
  translate(x, y) {
    const [dx, dy] = this.turned(x, y);
    this.state.shift = [this.state.shift[0] + dx, this.state.shift[1] + dy];
  }
  rotate(angle) { this.state.turn += angle; }
  turned(x, y) {
    const [cos, sin] = [Math.cos(this.state.turn), Math.sin(this.state.turn)];
    return [x * cos - y * sin, x * sin + y * cos];
  }
  at(x, y) {
    const [dx, dy] = this.turned(x, y);
    return `${short(this.state.shift[0] + dx)} ${short(this.state.shift[1] + dy)}`;
  }
  setLineDash(dash) { this.state.dash = dash; }
  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += `M${this.at(x, y)}`; }
  lineTo(x, y) { this.path += `${this.path ? "L" : "M"}${this.at(x, y)}`; }
  quadraticCurveTo(a, b, x, y) { this.path += `Q${this.at(a, b)} ${this.at(x, y)}`; }
  closePath() { this.path += "Z"; }
  rect(x, y, w, h) { this.path += `M${this.at(x, y)}L${this.at(x + w, y)}L${this.at(x + w, y + h)}L${this.at(x, y + h)}Z`; }
  arc(x, y, r, start, end) {
    if (end - start >= 2 * Math.PI - 1e-6) {
      this.path += `M${this.at(x + r, y)}A${short(r)} ${short(r)} 0 1 1 ${this.at(x - r, y)}A${short(r)} ${short(r)} 0 1 1 ${this.at(x + r, y)}Z`;
      return;
    }
    const point = (angle) => this.at(x + r * Math.cos(angle), y + r * Math.sin(angle));
    this.path += `${this.path ? "L" : "M"}${point(start)}A${short(r)} ${short(r)} 0 ${end - start > Math.PI ? 1 : 0} 1 ${point(end)}`;
  }
  look() {
    const clip = this.state.clip ? ` clip-path="url(#${this.state.clip})"` : "";
    const alpha = this.state.globalAlpha < 1 ? ` opacity="${short(this.state.globalAlpha)}"` : "";
    return `${clip}${alpha}`;
  }
  clip() {
    this.clips += 1;
    const id = `clip${this.clips}`;
    this.parts.push(`<clipPath id="${id}"><path d="${this.path}"/></clipPath>`);
    this.state.clip = id;
  }
  fill() { this.parts.push(`<path d="${this.path}" fill="${escape(this.state.fillStyle)}"${this.look()}/>`); }
  stroke() {
    const { strokeStyle, lineWidth, dash, lineCap, lineJoin } = this.state;
    const dashes = dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "";
    this.parts.push(
      `<path d="${this.path}" fill="none" stroke="${escape(strokeStyle)}" stroke-width="${short(lineWidth)}"` +
        ` stroke-linecap="${lineCap}" stroke-linejoin="${lineJoin}"${dashes}${this.look()}/>`,
    );
  }
  fillRect(x, y, w, h) {
    if (!(w > 0 && h > 0)) return;
    const [left, top] = this.at(x, y).split(" ");
    this.parts.push(`<rect x="${left}" y="${top}" width="${short(w)}" height="${short(h)}" fill="${escape(this.state.fillStyle)}"${this.look()}/>`);
  }
  strokeRect(x, y, w, h) {
    this.beginPath();
    this.rect(x, y, w, h);
    this.stroke();
  }
  measureText(text) {
    measuring.font = this.state.font;
    return measuring.measureText(text);
  }
  fillText(text, x, y) {
    const { font, textAlign, textBaseline, fillStyle, turn } = this.state;
    const [, weight, size, family] = /^(\S*?)\s*([\d.]+)px\s+(.*)$/.exec(font) ?? [null, "", "12", "sans-serif"];
    const anchor = { center: "middle", right: "end", end: "end" }[textAlign] ?? "start";
    const drop = { middle: 0.35, top: 0.8, hanging: 0.8 }[textBaseline] ?? 0;
    const [left, top] = this.at(x, y + drop * Number(size)).split(" ");
    const rotated = turn ? ` transform="rotate(${short((turn * 180) / Math.PI)} ${left} ${top})"` : "";
    this.parts.push(
      `<text x="${left}" y="${top}" font-family="${escape(family)}" font-size="${size}"${weight ? ` font-weight="${weight}"` : ""}` +
        ` text-anchor="${anchor}" fill="${escape(fillStyle)}"${rotated}${this.look()}>${escape(text)}</text>`,
    );
  }
  toString() {
    return (
      `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" ` +
      `viewBox="0 0 ${this.width} ${this.height}">\n${this.parts.join("\n")}\n</svg>\n`
    );
  }
}
