// States in colour, sign and word: of runs, of workers, of events.

import { h, setText } from "./dom.js";
import { words } from "./format.js";

const RUNS = {
  running: ["good", "●"], finished: ["dim", "✓"], interrupted: ["warn", "‖"], diverged: ["bad", "✕"], created: ["info", "○"], damaged: ["bad", "✕"], removed: ["dim", "–"],
};
const WORKERS = {
  working: ["good", "●"], ready: ["good", "●"], idle: ["good", "●"], training: ["good", "●"], exchanging: ["good", "●"], connected: ["good", "●"],
  joining: ["info", "→"], "catching up": ["info", "↻"], back: ["good", "↩"], lost: ["bad", "✕"], suspect: ["warn", "?"], away: ["dim", "○"],
  suspended: ["warn", "‖"], removed: ["bad", "–"], dead: ["bad", "✕"], quarantined: ["bad", "⊘"], refused: ["bad", "⊘"], left: ["dim", "←"], drained: ["dim", "←"], draining: ["warn", "←"],
};
export const EVENTS = {
  join: ["info", "→"], leave: ["dim", "←"], lost: ["bad", "✕"], suspect: ["warn", "?"], dead: ["bad", "✕"], back: ["good", "↩"], refusal: ["bad", "⊘"],
  leader: ["info", "★"], warning: ["warn", "!"], pause: ["warn", "‖"], resume: ["good", "▶"], checkpoint: ["dim", "◆"], away: ["dim", "○"], finished: ["good", "✓"],
  quarantine: ["bad", "⊘"], quarantined: ["bad", "⊘"], "catching up": ["info", "↻"], removed: ["bad", "–"], suspended: ["warn", "‖"], allowed: ["info", "→"], interrupted: ["warn", "‖"], diverged: ["bad", "✕"], drain: ["warn", "←"], stop: ["warn", "■"], start: ["info", "▷"],
};

function write(place, [tone, sign], text, live = false) {
  let badge = place.querySelector(":scope > .badge");
  if (!badge) {
    badge = h("span", { class: "badge" }, h("span", { "aria-hidden": "true" }), h("span", {}));
    place.append(badge);
  }
  badge.dataset.tone = tone;
  badge.dataset.live = String(live);
  setText(badge.firstChild, sign);
  setText(badge.lastChild, text);
  return badge;
}

export function statusBadge(place, row) {
  return write(place, RUNS[row.status] ?? ["dim", "·"], row.live ? "live" : words(row.status), row.live);
}

const MOST_NAMED = 3;

/** Who takes no part in a live run of machines. */
export function missingBadge(place, { missing }) {
  const named = missing.slice(0, MOST_NAMED).join(", ");
  return write(place, ["warn", "!"], `without ${named}${missing.length > MOST_NAMED ? ` and ${missing.length - MOST_NAMED} more` : ""}`);
}

export function workerBadge(place, state) {
  return write(place, WORKERS[words(state)] ?? ["dim", "·"], words(state ?? "unknown"));
}

export function eventBadge(place, kind) {
  return write(place, EVENTS[kind] ?? ["dim", "·"], words(kind));
}
