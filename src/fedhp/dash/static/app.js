// The page: which view is open, what it shows, and how news from the server reaches it.

import { ApiError, get, order, Stream } from "./api.js";
import { announce, byId, h, setHidden, setText, svg } from "./dom.js";
import { missingBadge, statusBadge } from "./badges.js";
import { count, dataSize, MISSING, percent, score, seconds, whole } from "./format.js";
import { RoundBar } from "./roundbar.js";
import { RunData } from "./store.js";
import { colors, dashOf, onThemeChange, setUpTheme } from "./theme.js";
import { Decisions } from "./views/decisions.js";
import { Events } from "./views/events.js";
import { Progress } from "./views/progress.js";
import { RunsView } from "./views/runs.js";
import { Timeline } from "./views/timeline.js";
import { Topology } from "./views/topology.js";
import { Workers } from "./views/workers.js";

const SECTIONS = [
  ["progress", "Progress", Progress], ["topology", "Topology", Topology], ["timeline", "Timeline", Timeline],
  ["decisions", "Decisions", Decisions], ["workers", "Workers", Workers], ["events", "Events", Events],
];
const KEPT_RUNS = 12; // whose tables stay in memory

let listing = { folder: "", runs: [], most_watched: Infinity };
const stored = new Map();
let page = null;
let stream = null;

// The address: #run=…&run=…&focus=…&section=…&round=…&axis=…&worker=…

function readAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  const runs = query.getAll("run").filter((run, index, all) => run && all.indexOf(run) === index);
  const section = SECTIONS.some(([key]) => key === query.get("section")) ? query.get("section") : "progress";
  const integer = (name, least) => (/^\d{1,9}$/.test(query.get(name) ?? "") && Number(query.get(name)) >= least ? Number(query.get(name)) : null);
  const focus = runs.includes(query.get("focus")) ? query.get("focus") : (runs[0] ?? null);
  return { runs, focus, section, round: integer("round", 1), axis: query.get("axis") === "round" ? "round" : "clock", worker: integer("worker", 0) };
}

function addressOf({ runs, focus, section, round, axis, worker }) {
  if (!runs.length) return "#";
  const query = new URLSearchParams();
  for (const run of runs) query.append("run", run);
  if (focus && focus !== runs[0]) query.set("focus", focus);
  query.set("section", section);
  if (round !== null && round !== undefined) query.set("round", round);
  if (axis === "round") query.set("axis", axis);
  if (worker !== null && worker !== undefined) query.set("worker", worker);
  // A slash may stay as it is: the address reads better.
  return `#${query.toString().replaceAll("%2F", "/")}`;
}

const linkTo = (changes) => addressOf({ runs: [], focus: null, section: "progress", round: null, axis: "clock", worker: null, ...changes });

function dataOf(run) {
  let data = stored.get(run);
  if (data) stored.delete(run);
  data ??= new RunData(run);
  stored.set(run, data);
  for (const key of [...stored.keys()]) {
    if (stored.size <= KEPT_RUNS) break;
    if (!page?.view?.runs.includes(key) && key !== run) stored.delete(key);
  }
  return data;
}

function sample(look) {
  const theme = colors();
  return svg("svg", { width: 24, height: 10, "aria-hidden": "true" }, svg("line", { x1: 0, y1: 5, x2: 24, y2: 5, stroke: theme.series[look % theme.series.length], "stroke-width": 3, "stroke-dasharray": dashOf(look).join(" ") }));
}

/** The page of one run, or of several that are compared. */
class RunPage {
  constructor(view) {
    this.view = view;
    this.all = view.runs.map(dataOf);
    this.element = h("div", {});
    this.section = null;
    this.drawn = Promise.resolve();
  }

  get focus() {
    return this.all.find((run) => run.run === this.view.focus) ?? this.all[0];
  }

  get timeName() {
    return this.all.some((run) => run.info?.network) ? "time" : "virtual time";
  }

  /** Read the runs; `reading` is called with how many of them are there. */
  async open(reading) {
    const most = listing.most_watched;
    if (this.all.length > most) {
      throw new ApiError(422, { error: `${this.all.length} runs are chosen`, allowed: `at most ${most} runs in one comparison`, fix: "choose fewer in the list of runs" });
    }
    let read = 0;
    await Promise.all(this.all.map(async (run) => {
      await run.refreshInfo();
      await run.refreshProgress();
      if (run.info.network) await run.refreshEvents(); // charts mark lost workers
      read += 1;
      reading(read, this.all.length);
    }));
    this.build();
  }

  name(run) {
    const same = this.all.filter((other) => other.info.label === run.info.label);
    if (same.length < 2) return run.info.label;
    const bySeed = same.every((other) => other === run || other.info.seed !== run.info.seed);
    return bySeed ? `${run.info.label}, seed ${run.info.seed}` : `${run.info.label} (${run.run})`;
  }

  build() {
    const several = this.all.length > 1;
    this.heading = h("h1", { tabindex: "-1" });
    this.badge = h("span", {});
    this.missing = h("span", {});
    this.path = h("p", { class: "muted" });
    this.facts = h("dl", { class: "facts" });
    this.actions = h("div", { class: "row" });
    this.chips = several ? h("ul", { class: "chips", "aria-label": "Runs compared" }) : null;
    this.sections = h("nav", { class: "sections", "aria-label": "Sections" });
    this.roundbar = new RoundBar({ changed: (round) => this.setRound(round), shown: () => this.drawn });
    this.place = h("div", {});
    this.problem = h("p", { class: "error", role: "status" });
    this.settings = h("details", { class: "card" }, h("summary", { text: "Settings of this run" }), h("dl", { class: "plain" }));
    this.settingsHolder = h("div", {}, this.settings);
    this.element.replaceChildren(
      h(
        "div",
        { class: "runhead" },
        h("a", { class: "crumb", href: "#", text: "← All runs" }),
        h("div", { class: "row spread" }, h("div", {}, h("div", { class: "row" }, this.heading, this.badge, this.missing), this.path), this.actions),
        ...(several ? [this.chips] : []),
        this.facts,
      ),
      this.sections,
      this.roundbar.element,
      this.problem,
      this.place,
      h("div", { class: "stack" }, h("p", {}), this.settingsHolder),
    );
    this.forget = onThemeChange(() => this.fillChips());
    this.showHead();
    this.openSection();
  }

  context() {
    const self = this;
    return {
      all: this.all,
      focus: this.focus,
      view: this.view,
      get timeName() { return self.timeName; },
      name: (run) => this.name(run),
      look: (run) => this.all.indexOf(run),
      link: (changes) => addressOf({ ...this.view, worker: null, ...changes }),
      file: (run) => (run.run === "." ? listing.folder || "run" : run.run).replaceAll(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-.]+/, "") || "run",
      round: () => this.round(),
      setRound: (round) => { this.roundbar.pause(); this.setRound(round); },
      setAxis: (axis) => this.remember({ axis }),
      setWorker: (worker) => this.remember({ worker }),
    };
  }

  round() {
    const last = this.focus.lastRound;
    return Math.min(this.view.round ?? last, last);
  }

  remember(changes) {
    Object.assign(this.view, changes);
    history.replaceState(null, "", addressOf(this.view));
    this.showSections();
  }

  setRound(round) {
    this.remember({ round });
    this.showRound();
    this.refreshSection();
  }

  showRound() {
    this.roundbar.set({ last: this.focus.lastRound, round: this.view.round, live: this.focus.info.live });
  }

  openSection() {
    this.section?.destroy();
    const [, , Section] = SECTIONS.find(([key]) => key === this.view.section);
    setText(this.problem, "");
    this.section = new Section(this.context());
    this.place.replaceChildren(this.section.element);
    setHidden(this.roundbar.element, !this.section.usesRound || !this.focus.lastRound);
    this.showSections();
    this.showRound();
    this.refreshSection();
  }

  showSections() {
    const links = SECTIONS.map(([key, title]) => {
      const known = [...this.sections.children].find((link) => link.dataset.section === key);
      const link = known ?? h("a", { "data-section": key, text: title });
      link.href = addressOf({ ...this.view, section: key, worker: null });
      if (key === this.view.section) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      return link;
    });
    if (!this.sections.firstChild) this.sections.append(...links);
    const current = links.find((link) => link.hasAttribute("aria-current"));
    const { offsetLeft, offsetWidth } = current;
    const { scrollLeft, clientWidth } = this.sections;
    if (offsetLeft < scrollLeft || offsetLeft + offsetWidth > scrollLeft + clientWidth) this.sections.scrollLeft = offsetLeft - 40;
  }

  /** Draw what is new; errors are told in the page, and the next news tries again. */
  refreshSection() {
    const { section } = this;
    this.drawn = Promise.resolve(section.update()).then(
      () => setText(this.problem, ""),
      (error) => {
        if (section === this.section && error.status !== 0) setText(this.problem, `${error.message}. ${error.help ?? ""}`);
        if (error.status === undefined && error.name !== "AbortError") console.error(error);
      },
    );
    return this.drawn;
  }

  showHead() {
    const { focus } = this;
    const { info } = focus;
    const several = this.all.length > 1;
    setText(this.heading, several && this.view.section === "progress" ? `Comparison of ${this.all.length} runs` : info.label);
    document.title = `${several ? `${this.all.length} runs` : info.label} · fedhp`;
    setHidden(this.badge, several && this.view.section === "progress");
    statusBadge(this.badge, info);
    missingBadge(this.missing, info);
    setHidden(this.missing, !info.missing.length || (several && this.view.section === "progress"));
    const where = focus.run === "." ? listing.folder : focus.run;
    setText(this.path, several && this.view.section === "progress" ? "Choose a run to look into it; Progress lays all of them over each other." : [where, `seed ${info.seed}`, this.present(info), info.network ? "on machines" : "simulated"].filter(Boolean).join(" · "));
    this.fillFacts();
    this.fillChips();
    this.fillActions();
    const list = this.settings.lastChild;
    const described = info.description ?? [];
    if (list.childElementCount !== described.length || this.describedOf !== focus.run) {
      this.describedOf = focus.run;
      setText(this.settings.firstChild, several ? `Settings of ${this.name(focus)}` : "Settings of this run");
      list.replaceChildren(...described.map(({ name, value }) => h("div", {}, h("dt", { text: name }), h("dd", { text: value }))));
    }
    setHidden(this.settings, !described.length);
  }

  /** How many workers there are; of a live network run, how many of them take part now. */
  present(info) {
    const workers = count(info.workers, "worker");
    return info.missing.length ? `${whole(info.workers - info.missing.length)} of ${workers}` : workers;
  }

  fillFacts() {
    const { focus } = this;
    const { info, rounds, tests } = focus;
    const hide = this.all.length > 1 && this.view.section === "progress";
    setHidden(this.facts, hide);
    if (hide) return;
    const sum = (values) => (values ?? []).reduce((total, value) => total + (value ?? 0), 0);
    const mean = (values) => (values?.length ? sum(values) / values.length : null);
    const [roundTime, waiting] = [mean(rounds.round_time), mean(rounds.mean_waiting_time)];
    const planned = info.planned_rounds ?? null;
    const metric = `last test: ${info.metric}`;
    const best = (tests.best ?? []).at(-1);
    const items = [
      [metric, score((tests.accuracy ?? []).at(-1) ?? info.accuracy, info.metric), Number.isFinite(best) ? `${score(tests.worst.at(-1), info.metric)} to ${score(best, info.metric)}` : ""],
      ["round", whole(focus.lastRound), planned ? `of ${whole(planned)}` : ""],
      [this.timeName, seconds(rounds.clock?.at(-1) ?? 0), info.horizon ? `of ${seconds(info.horizon)}` : ""],
      ["mean round", seconds(roundTime), ""],
      ["waiting", roundTime ? percent(waiting / roundTime) : MISSING, "of the round"],
      ["data sent", dataSize(sum(rounds.bytes_sent)), ""],
    ];
    if (this.facts.childElementCount !== items.length) {
      this.facts.replaceChildren(...items.map(() => h("div", {}, h("dt", {}), h("dd", {}, h("span", {}), " ", h("small", {})))));
    }
    items.forEach(([name, value, more], index) => {
      const [term, detail] = this.facts.children[index].children;
      setText(term, name);
      setText(detail.firstChild, value);
      setText(detail.lastChild, more);
    });
  }

  fillChips() {
    if (!this.chips) return;
    const key = `${this.view.focus} ${this.view.section} ${colors().card} ${this.all.map((run) => run.info.status).join()}`;
    if (this.chipsKey === key) return;
    this.chipsKey = key;
    const one = this.view.section !== "progress";
    this.chips.replaceChildren(
      ...this.all.map((run, look) => {
        const selected = one && run === this.focus;
        const section = one ? this.view.section : "topology";
        const link = h("a", { href: addressOf({ ...this.view, focus: run.run, section, round: null, worker: null }), text: this.name(run), ...(selected ? { "aria-current": "true" } : {}) });
        const rest = this.view.runs.filter((other) => other !== run.run);
        const remove = h("button", { type: "button", "aria-label": `Take ${this.name(run)} out of the comparison`, text: "×", onclick: () => { location.hash = addressOf({ ...this.view, runs: rest, focus: rest.includes(this.view.focus) ? this.view.focus : rest[0] }); } });
        return h("li", { class: "chip", "data-selected": String(selected) }, sample(look), link, remove);
      }),
    );
  }

  fillActions() {
    const allowed = this.focus.info.actions ?? [];
    const key = allowed.join(" ");
    if (this.actionsKey === key) return;
    this.actionsKey = key;
    this.actions.replaceChildren();
    if (allowed.includes("stop")) {
      this.actions.append(h("button", { type: "button", class: "danger", text: "Stop the run …", onclick: () => this.stop() }));
    }
  }

  async stop() {
    try {
      const answer = await order("stop", { run: this.focus.run }, { title: `Stop ${this.focus.info.label}?`, text: "The coordinator ends the run after the committed round. The same command continues it later.", button: "Stop the run" });
      announce(answer?.text ?? "The run was told to stop.", { now: true });
    } catch (error) {
      if (error.name !== "AbortError") setText(this.problem, error.message);
    }
  }

  /** The address changed while this page stays: another section, round or run in focus. */
  move(view) {
    const sameSection = view.section === this.view.section && view.focus === this.view.focus;
    const sameRound = view.round === this.view.round;
    this.view = view;
    this.showHead();
    if (!sameSection) this.openSection();
    else if (!sameRound) {
      this.showRound();
      this.refreshSection();
    }
    this.showSections();
  }

  /** News of a run: read what is new, then draw, without touching what did not change. */
  async news(run, told = null) {
    const data = this.all.find((each) => each.run === run);
    if (!data?.info) return;
    const before = data.lastRound;
    const same = told && told.rounds === before && told.status === data.info.status && told.live === data.info.live;
    if (same && this.view.section !== "events" && this.view.section !== "workers") return;
    await data.refreshInfo();
    if (data.lastRound !== data.info.rounds) await data.refreshProgress();
    if (data.info.network) await data.refreshEvents();
    if (page !== this || !this.section) return;
    if (data === this.focus) data.forgetWorkers(data.lastRound);
    this.showHead();
    this.showRound();
    setHidden(this.roundbar.element, !this.section.usesRound || !this.focus.lastRound);
    if (data === this.focus || this.view.section === "progress") await this.refreshSection();
    if (data.lastRound !== before) {
      announce(`${this.name(data)}: round ${data.lastRound}, ${score((data.tests.accuracy ?? []).at(-1), data.info.metric)}`);
    }
  }

  async everything() {
    for (const run of this.all) await this.news(run.run);
  }

  destroy() {
    this.section?.destroy();
    this.roundbar?.destroy();
    this.forget?.();
  }
}

/** The list of runs. */
class ListPage {
  constructor(view) {
    this.view = view;
    this.list = new RunsView({ listing: () => listing, link: (run) => linkTo({ runs: [run] }), open: (runs) => { location.hash = linkTo({ runs }); } });
    this.element = this.list.element;
    this.heading = this.list.heading;
    document.title = `${listing.folder || "runs"} · fedhp`;
    const timer = setInterval(() => this.list.update(), 30000);
    this.stopTimer = () => clearInterval(timer);
  }

  update() {
    this.list.update();
  }

  destroy() {
    this.stopTimer();
  }
}

async function readListing() {
  listing = await get("runs");
  setText(byId("folder"), listing.folder ?? "");
}

let opening = 0;

async function navigate({ first = false } = {}) {
  const view = readAddress();
  const same = page?.view && page.view.runs.length && view.runs.join("\n") === page.view.runs.join("\n");
  if (same && page instanceof RunPage && page.section) return page.move(view);
  opening += 1;
  const number = opening;
  const main = byId("main");
  main.setAttribute("aria-busy", "true");
  try {
    let next;
    if (view.runs.length) {
      next = new RunPage(view);
      const before = page;
      page = next;
      await next.open((read, all) => number === opening && all > 1 && showReading(main, read, all));
      if (number !== opening) return;
      before?.destroy();
    } else {
      if (!first) await readListing();
      if (number !== opening) return;
      page?.destroy();
      next = new ListPage(view);
      page = next;
    }
    main.replaceChildren(next.element);
    if (next instanceof RunPage) next.showSections(); // now that it has a width
    stream.follow(view.runs);
    if (!first) {
      next.heading.focus({ preventScroll: true });
      window.scrollTo(0, 0);
    }
  } catch (error) {
    if (number !== opening) return;
    stream.follow([]);
    showProblem(error);
  } finally {
    if (number === opening) main.removeAttribute("aria-busy");
  }
}

/** How far the runs of a comparison are read, instead of the page that is left. */
function showReading(main, read, all) {
  const known = main.querySelector(":scope > .reading");
  const shown = known ?? h("div", { class: "card stack reading" }, h("h1", { tabindex: "-1" }), h("progress", { "aria-label": "Runs read" }));
  setText(shown.firstChild, `Reading ${read} of ${all} runs …`);
  Object.assign(shown.lastChild, { max: all, value: read });
  if (!known) main.replaceChildren(shown);
}

function showProblem(error) {
  page?.destroy();
  page = null;
  if (error.status === undefined) console.error(error);
  byId("main").replaceChildren(
    h("div", { class: "card stack" }, h("h1", { text: error.status === 0 ? "The server cannot be reached" : "This cannot be shown" }), h("p", { class: "error", text: `${error.message}.` }), h("p", { text: error.help ?? "" }), h("p", {}, h("a", { href: "#", text: "All runs" }))),
  );
}

/** One reaction per run and moment, however many events arrive. */
const waiting = new Map();
let working = false;
async function react(run, told = null) {
  waiting.set(run, waiting.has(run) ? null : told);
  if (working) return;
  working = true;
  try {
    while (waiting.size) {
      const [[next, about]] = waiting;
      waiting.delete(next);
      try {
        if (page instanceof RunPage) await page.news(next, about);
      } catch (error) {
        if (error.status === undefined) throw error; // the connection's state is told elsewhere
      }
    }
  } finally {
    working = false;
  }
}

function onEvent(kind, data) {
  if (kind === "runs") {
    const rows = new Map(listing.runs.map((row) => [row.run, row]));
    for (const row of data.runs ?? []) rows.set(row.run, row);
    for (const run of data.removed ?? []) rows.delete(run);
    listing.runs = [...rows.values()].sort((a, b) => Number(b.live) - Number(a.live) || b.changed - a.changed);
    if (page instanceof ListPage) page.update();
    return;
  }
  react(data.run, kind === "round" ? data : null);
}

async function restored() {
  try {
    await readListing();
    if (page instanceof ListPage) page.update();
    else if (page instanceof RunPage && page.section) await page.everything();
    else await navigate();
  } catch (error) {
    if (error.status === undefined) throw error;
  }
}

async function main() {
  setUpTheme();
  stream = new Stream({ onEvent, onRestored: restored });
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  window.addEventListener("hashchange", () => navigate());
  try {
    await readListing();
  } catch (error) {
    stream.follow([]);
    showProblem(error);
    return;
  }
  // A folder that is one run opens on it.
  if (!readAddress().runs.length && listing.runs.length === 1 && listing.runs[0].run === "." && !listing.runs[0].problem) {
    history.replaceState(null, "", linkTo({ runs: ["."] }));
  }
  await navigate({ first: true });
}

main();
