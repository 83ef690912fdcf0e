// The server: reading JSON, the stream of events, and orders that need a token.

import { h, byId, setHidden, setText } from "./dom.js";

export class ApiError extends Error {
  constructor(status, body, retryAfter) {
    super(body?.error ?? (status ? `the server answered ${status}` : "the server cannot be reached"));
    this.status = status; // 0: no answer
    this.body = body ?? {};
    this.retryAfter = retryAfter;
  }

  get help() {
    return [this.body.allowed && `Allowed: ${this.body.allowed}.`, this.body.fix && `Fix: ${this.body.fix}.`]
      .filter(Boolean)
      .join(" ");
  }
}

function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of [value].flat()) {
      if (each !== undefined && each !== null) query.append(name, each);
    }
  }
  const text = query.toString();
  return `/api/${path}${text ? `?${text}` : ""}`;
}

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0);
  }
  let body = null;
  try {
    body = await response.json();
  } catch {
    // Cut off, because the server ended; the status of an error says enough.
    if (response.ok) throw new ApiError(0);
  }
  if (!response.ok) throw new ApiError(response.status, body, Number(response.headers.get("Retry-After")) || null);
  return body;
}

let loggingIn = null;

/** GET a document of the API; a server with a token for readers is asked in once. */
export async function get(path, parameters, { signal } = {}) {
  try {
    return await answer(fetch(address(path, parameters), { headers: { Accept: "application/json" }, signal }));
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 401) throw error;
    loggingIn ??= logIn().finally(() => (loggingIn = null));
    await loggingIn;
    return answer(fetch(address(path, parameters), { headers: { Accept: "application/json" }, signal }));
  }
}

/** The server sets a cookie that scripts cannot read. */
async function signIn(token) {
  const response = await fetch("/login", { method: "POST", body: new URLSearchParams({ token }) }).catch(() => null);
  if (!response) throw new ApiError(0);
  if (!response.ok) throw new ApiError(response.status, response.status === 401 ? { error: "the token is wrong" } : null);
}

function logIn() {
  return askToken({
    title: "This server asks for a token",
    text: "It is in the file of --token-file, or the command printed it.",
    action: "Sign in",
    send: signIn,
  });
}

async function post(path, body, token) {
  const headers = { "Content-Type": "application/json", Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  return answer(fetch(path, { method: "POST", headers, body: JSON.stringify(body) }));
}

/** Ask for the token in a dialog, send an order with it, and stay open while it is refused. */
export function order(action, body, { title, text, button }) {
  return askToken({ title, text, action: button, send: (token) => post(`/api/${action}`, body, token), optional: true });
}

function askToken({ title, text, action, send, optional = false }) {
  return new Promise((resolve, reject) => {
    const input = h("input", { type: "password", id: "token", autocomplete: "off", required: true });
    const problem = h("p", { class: "error", role: "alert" });
    const submit = h("button", { type: "submit", class: "main", text: action });
    const cancel = h("button", { type: "button", text: "Cancel", onclick: () => dialog.close() });
    let done = false;
    const form = h(
      "form",
      {
        onsubmit: async (event) => {
          event.preventDefault();
          submit.disabled = true;
          try {
            const result = await send(input.value);
            done = true;
            dialog.close();
            resolve(result);
          } catch (error) {
            setText(problem, `${error.message}. ${error.help ?? ""}`);
            input.focus();
          } finally {
            submit.disabled = false;
          }
        },
      },
      h("h2", { id: "token-title", text: title }),
      h("p", { text }),
      h("div", {}, h("label", { for: "token", text: "Token" }), input),
      problem,
      h("div", { class: "row" }, submit, optional && cancel),
    );
    const dialog = h("dialog", { class: "small", "aria-labelledby": "token-title" }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (!done) reject(Object.assign(new Error("cancelled"), { name: "AbortError" }));
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

const REST_AFTER = 10000; // ms in the background

/**
 * Server-sent events. `restored` is called when the connection is there (again): what happened in
 * between has to be read. The browser reconnects by itself where it can; where it gave up, or the
 * server does not answer, this opens a new connection.
 */
export class Stream {
  constructor({ onEvent, onRestored }) {
    this.onEvent = onEvent;
    this.onRestored = onRestored;
    this.runs = null;
    this.source = null;
    this.lost = false;
    this.timer = setInterval(() => this.watch(), 1500);
    this.checking = false;
    this.lastCheck = performance.now();
    this.resting = null;
    // A browser has six connections per server for all of its tabs: one that nobody looks at, or
    // that was left and is only kept for the back button, gives its own back.
    window.addEventListener("pagehide", () => this.rest());
    window.addEventListener("pageshow", (event) => event.persisted && this.wake());
    document.addEventListener("visibilitychange", () => {
      clearTimeout(this.resting);
      if (document.hidden) this.resting = setTimeout(() => this.rest(), REST_AFTER);
      else this.wake();
    });
  }

  rest() {
    this.source?.close();
    this.source = null;
  }

  wake() {
    if (this.source || !this.runs) return;
    this.lost = true; // what happened meanwhile is read when the connection is there
    this.open();
  }

  follow(runs) {
    if (this.source && this.runs && this.runs.join("\n") === runs.join("\n")) return;
    this.runs = [...runs];
    if (!document.hidden) this.open();
  }

  open() {
    this.source?.close();
    const source = new EventSource(address("stream", { run: this.runs }));
    this.source = source;
    source.onopen = () => {
      if (source === this.source) this.found();
    };
    source.onerror = () => {
      if (source !== this.source) return;
      // Closed: the server answered, with something else than a stream.
      if (source.readyState !== EventSource.CLOSED) return this.lose();
      this.lost = true;
      this.watch();
    };
    for (const kind of ["runs", "round", "event"]) {
      source.addEventListener(kind, (event) => {
        if (source !== this.source) return;
        this.onEvent(kind, JSON.parse(event.data));
      });
    }
  }

  found() {
    const again = this.lost;
    this.lost = false;
    showConnection("live");
    if (again) this.onRestored();
  }

  lose() {
    this.lost = true;
    showConnection("lost");
  }

  /** An EventSource does not say why it was refused: ask once like any other request. */
  async checkStream() {
    const stop = new AbortController();
    const response = await fetch(address("stream", { run: this.runs }), { signal: stop.signal }).catch(() => null);
    if (response?.ok) return stop.abort();
    await answer(response ?? Promise.reject(new Error("no answer")));
  }

  /** A server that hangs keeps its connection: ask now and then whether it answers. */
  async watch() {
    if (this.checking || !this.source) return;
    const due = this.lost || (!document.hidden && performance.now() - this.lastCheck > 15000);
    if (!due) return;
    this.checking = true;
    this.lastCheck = performance.now();
    try {
      await answer(fetch("/api/health", { signal: AbortSignal.timeout(5000) }));
      if (this.lost && this.source.readyState === EventSource.CLOSED) {
        await get("runs"); // may ask for the token
        await this.checkStream();
      }
      if (this.lost && this.source.readyState !== EventSource.OPEN) this.open();
      else if (this.lost) this.found();
    } catch (error) {
      if (error instanceof ApiError && error.status > 0 && error.status !== 401) showConnection("refused", `No live updates: ${error.message}. ${error.help}`);
      else if (!(error instanceof ApiError && error.status === 401)) this.lose();
    } finally {
      this.checking = false;
    }
  }
}

function showConnection(state, why = "Server unreachable, trying again …") {
  const element = byId("connection");
  element.dataset.state = state === "live" ? "live" : "lost";
  setText(element, { live: "connected", refused: "no live updates" }[state] ?? "not connected");
  const banner = byId("unreachable");
  setHidden(banner, state === "live");
  setText(banner, state === "live" ? "" : why);
}
