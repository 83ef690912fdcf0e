// What the page knows of one run. Tables grow by what is new; single rounds are kept for a while.

import { get } from "./api.js";

const KEPT_ROUNDS = 24;
const KEPT_LINKS = 200000; // of all kept rounds together

function append(table, news) {
  for (const [name, values] of Object.entries(news ?? {})) {
    if (!Array.isArray(values)) continue;
    table[name] = (table[name] ?? []).concat(values);
  }
}

/** A cache of promises, least used first; `weigh` says how large an answer is. */
class Kept {
  constructor(load, weigh = () => 1) {
    Object.assign(this, { load, weigh, entries: new Map(), weights: new Map() });
  }

  get(key) {
    let entry = this.entries.get(key);
    if (entry) this.entries.delete(key);
    else {
      entry = this.load(key);
      entry.then(
        (value) => {
          this.weights.set(key, this.weigh(value));
          this.trim(key);
        },
        () => this.entries.delete(key),
      );
    }
    this.entries.set(key, entry);
    return entry;
  }

  trim(newest) {
    const total = () => [...this.weights.values()].reduce((sum, weight) => sum + weight, 0);
    for (const key of [...this.entries.keys()]) {
      if (this.entries.size <= KEPT_ROUNDS && total() <= KEPT_LINKS) return;
      if (key === newest) continue;
      this.entries.delete(key);
      this.weights.delete(key);
    }
  }

  clear() {
    this.entries.clear();
    this.weights.clear();
  }
}

export class RunData {
  constructor(run) {
    this.run = run;
    this.info = null;
    this.summary = null;
    this.round = new Kept((round) => get("round", { run, round }), (answer) => answer.links?.length ?? 1);
    this.turns = new Kept((round) => get("turns", { run, round }), (answer) => answer.phases.worker.length);
    this.explain = new Kept((round) => get("explain", { run, round }));
    this.workers = new Kept((round) => get("workers", { run, round }));
    this.reset();
  }

  reset() {
    this.rounds = { round: [] };
    this.tests = { round: [] };
    this.behind = null;
    this.decisions = null;
    this.events = [];
    this.nextEvent = 0;
    this.eventLog = null;
    this.classes = null;
    this.loading = {};
    for (const kept of [this.round, this.turns, this.explain, this.workers]) kept.clear();
  }

  get lastRound() {
    return this.rounds.round.at(-1) ?? 0;
  }

  /** One request of a kind at a time; a call during one makes another follow it. */
  async once(kind, load) {
    const state = (this.loading[kind] ??= { running: null, again: false });
    if (state.running) {
      state.again = true;
      return state.running;
    }
    state.running = (async () => {
      try {
        do {
          state.again = false;
          await load();
        } while (state.again);
      } finally {
        state.running = null;
      }
    })();
    return state.running;
  }

  refreshInfo() {
    return this.once("info", async () => {
      this.info = await get("run", { run: this.run });
      // A resumed run repeats the rounds after its checkpoint.
      if (this.info.rounds < this.lastRound) this.reset();
    });
  }

  refreshSummary() {
    return this.once("summary", async () => {
      this.summary = await get("summary", { run: this.run });
    });
  }

  refreshProgress() {
    return this.once("progress", async () => {
      const after = this.lastRound;
      const news = await get("progress", { run: this.run, after });
      if (this.lastRound !== after) return; // reset in the meantime
      append(this.rounds, news.rounds);
      append(this.tests, news.tests);
      this.behind = news.behind ?? null;
    });
  }

  refreshDecisions() {
    return this.once("decisions", async () => {
      const after = this.decisions?.round?.at(-1) ?? 0;
      const news = await get("decisions", { run: this.run, after });
      const all = (this.decisions ??= { round: [], verdicts: {}, words: {} });
      const known = all.round.length;
      const added = news.round?.length ?? 0;
      const { verdicts, words, ...columns } = news;
      append(all, columns);
      Object.assign(all.words, words);
      for (const [word, counts] of Object.entries(verdicts ?? {})) {
        all.verdicts[word] = (all.verdicts[word] ?? new Array(known).fill(0)).concat(counts);
      }
      for (const word of Object.keys(all.verdicts)) {
        const missing = known + added - all.verdicts[word].length;
        if (missing > 0) all.verdicts[word] = all.verdicts[word].concat(new Array(missing).fill(0));
      }
    });
  }

  refreshEvents() {
    return this.once("events", async () => {
      const news = await get("events", { run: this.run, after: this.nextEvent });
      // Another list, or one that is shorter than what was read: it begins again.
      if (news.log !== this.eventLog && this.nextEvent > 0 && !news.reset) {
        this.eventLog = news.log;
        this.nextEvent = 0;
        this.events = [];
        this.loading.events.again = true;
        return;
      }
      this.eventLog = news.log;
      this.nextEvent = news.next ?? this.nextEvent;
      this.events = news.reset ? (news.events ?? []) : this.events.concat(news.events ?? []);
    });
  }

  /** When workers were lost, as marks of a chart over rounds, or over time. */
  losses(byRound = true) {
    const gone = new Set();
    const marks = [];
    for (const { kind, worker, round, clock, text } of this.events) {
      if (kind === "back" || kind === "join") gone.delete(worker);
      else if ((kind === "lost" || kind === "dead") && !gone.has(worker)) {
        gone.add(worker); // who is lost is given up later: one loss
        marks.push({ x: byRound ? round : clock, text });
      }
    }
    return marks;
  }

  /** States of workers change between two rounds, so the last one is read again. */
  forgetWorkers(round) {
    this.workers.entries.delete(round);
  }

  forgetTurns(round) {
    this.turns.entries.delete(round);
  }

  /** How a worker is called: its name if it has one, else its number. */
  name(worker) {
    const name = this.info?.names?.[worker];
    return name === undefined || name === null || name === "" ? `worker ${worker}` : String(name);
  }
}
