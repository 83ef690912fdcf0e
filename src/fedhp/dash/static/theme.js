// Colours: those of the style sheet, read once per theme for what is drawn on a canvas.

import { byId } from "./dom.js";

const KEY = "fedhp-theme";
const ORDER = ["system", "light", "dark"];
const SIGNS = { system: "◐", light: "☀", dark: "☾" };
const system = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
let cached = null;

/** Dashes tell lines apart where colour does not. */
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [4, 2], [12, 4], [1, 2], [6, 2, 1, 2, 1, 2]];
export const SHAPES = ["circle", "square", "diamond", "triangle", "hexagon"];

/** The dashes of the line with this number: from the ninth on, a colour comes with other ones. */
export function dashOf(look) {
  return DASHES[(look + Math.floor(look / DASHES.length)) % DASHES.length];
}

export function colors() {
  if (cached) return cached;
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const list = (name, length) => Array.from({ length }, (_, index) => read(`${name}-${index}`));
  cached = {
    ink: read("ink"),
    quiet: read("quiet"),
    line: read("line"),
    grid: read("grid"),
    card: read("card"),
    raised: read("raised"),
    accent: read("accent"),
    bad: read("bad"),
    good: read("good"),
    warn: read("warn"),
    compute: read("compute"),
    communicate: read("communicate"),
    wait: read("wait"),
    cut: read("cut"),
    verdicts: {
      cut: read("cut-fill"), kept_bridge: read("kept-bridge"), kept_bound: read("kept-bound"), kept_no_gain: read("kept-no-gain"),
      kept_untried: read("kept-untried"), kept_all: read("kept-all"), fixed: read("kept-all"), drawn: read("drawn"), scored: read("drawn"), tree: read("kept-no-gain"),
    },
    series: list("series", 8),
    ramp: list("ramp", 5),
    font: "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
  };
  return cached;
}

export function font(size, weight = "") {
  return colors().font.replace("12px", `${weight} ${size}px`.trim());
}

/** The colour of the workers of a kind of device, by its place in the sorted list of kinds. */
export function kindColor(kind) {
  const { series } = colors();
  return series[[0, 2, 3, 4, 6, 5, 7, 1][Math.max(0, kind) % 8]];
}

/** A colour with this opacity, from "#rrggbb". */
export function faded(hex, opacity) {
  const value = Number.parseInt(hex.slice(1), 16);
  return `rgba(${value >> 16}, ${(value >> 8) & 255}, ${value & 255}, ${opacity})`;
}

/** The colour of a share from 0 to 1 on the scale for link times. */
export function onRamp(share) {
  const stops = colors().ramp;
  const place = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(place));
  const [from, to] = [stops[index], stops[index + 1]].map((hex) => Number.parseInt(hex.slice(1), 16));
  const mix = (shift) => {
    const [a, b] = [(from >> shift) & 255, (to >> shift) & 255];
    return Math.round(a + (b - a) * (place - index));
  };
  return `rgb(${mix(16)}, ${mix(8)}, ${mix(0)})`;
}

export function onThemeChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function reducedMotion() {
  return window.matchMedia("(prefers-reduced-motion: reduce)").matches;
}

function chosen() {
  return document.documentElement.dataset.theme ?? "system";
}

function changed() {
  cached = null;
  for (const listener of listeners) listener();
}

function showChoice() {
  const button = byId("theme");
  const names = { system: "as the system", light: "light", dark: "dark" };
  button.textContent = SIGNS[chosen()];
  button.setAttribute("aria-label", `Colours: ${names[chosen()]}. Change`);
  button.title = `Colours: ${names[chosen()]}`;
}

export function setUpTheme() {
  system.addEventListener("change", changed);
  byId("theme").addEventListener("click", () => {
    const next = ORDER[(ORDER.indexOf(chosen()) + 1) % ORDER.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // The choice then lasts until the page is closed.
    }
    showChoice();
    changed();
  });
  showChoice();
}
