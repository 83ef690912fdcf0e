// Which round is shown: a slider, buttons and keys. It follows the last round until moved.

import { h, setHidden, setText } from "./dom.js";
import { whole } from "./format.js";

const SPEEDS = [["1400", "slow"], ["700", "normal"], ["250", "fast"]];

export class RoundBar {
  /** changed(round or null): null means: follow the last round. shown(): promise of the drawing. */
  constructor({ changed, shown }) {
    this.changed = changed;
    this.shown = shown;
    this.last = 0;
    this.round = null;
    this.playing = null;
    this.pace = 700;
    const button = (text, label, action) => h("button", { type: "button", text, "aria-label": label, title: label, onclick: action });
    this.slider = h("input", {
      type: "range", min: "1", max: "1", step: "1", "aria-label": "Round",
      oninput: () => { this.pause(); this.go(Number(this.slider.value)); },
    });
    this.field = h("input", {
      type: "number", min: "1", step: "1", "aria-label": "Round number",
      onchange: () => {
        this.pause();
        this.go(Math.min(this.last, Math.max(1, Math.round(Number(this.field.value)) || 1)));
      },
    });
    this.total = h("span", { class: "muted" });
    this.play = h("button", { type: "button", class: "play", onclick: () => (this.playing === null ? this.start() : this.pause()) });
    this.playSign = h("span", { "aria-hidden": "true" });
    this.playText = h("span", { class: "text" });
    this.play.append(this.playSign, this.playText);
    this.showPlay(false);
    this.follow = h("button", { type: "button", text: "Follow the last round", hidden: true, onclick: () => { this.pause(); this.go(null); this.slider.focus(); } });
    this.speed = h("select", { "aria-label": "Speed", onchange: () => (this.pace = Number(this.speed.value)) }, SPEEDS.map(([value, text]) => h("option", { value, text })));
    this.speed.value = "700";
    this.following = h("span", { class: "badge", "data-tone": "info", hidden: true, text: "follows the last round" });
    this.element = h(
      "div",
      { class: "roundbar", role: "group", "aria-label": "Round shown" },
      h("span", { class: "buttons" }, button("«", "First round", () => { this.pause(); this.go(1); }), button("‹", "Round before", () => this.step(-1)), this.play, button("›", "Next round", () => this.step(1)), button("»", "Last round", () => { this.pause(); this.go(this.live ? null : this.last); })),
      this.slider,
      h("span", { class: "field" }, this.field, this.total),
      this.speed,
      this.follow,
      this.following,
    );
  }

  get current() {
    return Math.min(this.round ?? this.last, this.last) || this.last;
  }

  set({ last, round, live }) {
    Object.assign(this, { last, round, live });
    this.slider.max = String(Math.max(1, last));
    this.field.max = String(Math.max(1, last));
    if (Number(this.slider.value) !== this.current) this.slider.value = String(this.current);
    if (document.activeElement !== this.field || this.playing !== null) this.field.value = String(this.current);
    this.slider.setAttribute("aria-valuetext", `round ${this.current} of ${last}`);
    setText(this.total, `of ${whole(last)}`);
    setHidden(this.follow, !(live && round !== null));
    setHidden(this.following, !(live && round === null));
    this.slider.disabled = last < 2;
  }

  go(round) {
    this.round = round;
    this.set({ last: this.last, round, live: this.live });
    this.changed(round);
  }

  step(by) {
    this.pause();
    const next = Math.min(this.last, Math.max(1, this.current + by));
    if (next !== this.current || this.round === null) this.go(next);
  }

  start() {
    if (this.last < 2) return;
    if (this.current >= this.last) this.go(1);
    this.showPlay(true);
    const next = async () => {
      const began = performance.now();
      await this.shown();
      if (this.playing === null) return;
      const wait = Math.max(0, this.pace - (performance.now() - began));
      this.playing = setTimeout(() => {
        if (this.current >= this.last) {
          this.pause();
          if (this.live) this.go(null);
          return;
        }
        this.go(this.current + 1);
        next();
      }, wait);
    };
    this.playing = 0;
    next();
  }

  pause() {
    if (this.playing !== null) clearTimeout(this.playing);
    this.playing = null;
    this.showPlay(false);
  }

  showPlay(playing) {
    setText(this.playSign, playing ? "⏸\ufe0e" : "▶\ufe0e");
    setText(this.playText, playing ? " Pause" : " Play");
  }

  destroy() {
    this.pause();
  }
}
