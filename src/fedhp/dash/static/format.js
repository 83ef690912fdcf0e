// Numbers for people: the same roundings as the tables of `fedhp show`.

export const MISSING = "–";

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Three significant digits, thousands grouped. */
export function number(value, digits = 3) {
  if (!isNumber(value)) return MISSING;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) return value.toExponential(1);
  if (size >= 10 ** digits) return Math.round(value).toLocaleString("en");
  return trim(value.toPrecision(digits));
}

function trim(text) {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

export function whole(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en") : MISSING;
}

export function seconds(value) {
  if (!isNumber(value)) return MISSING;
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size >= 1000) return `${Math.round(value).toLocaleString("en")} s`;
  return size < 1e-4 ? `${value.toExponential(1)} s` : `${value.toPrecision(3)} s`;
}

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];
export function dataSize(bytes) {
  if (!isNumber(bytes)) return MISSING;
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : trim(value.toPrecision(3))} ${UNITS[unit]}`;
}

export function score(value, metric) {
  if (!isNumber(value)) return MISSING;
  return metric === "accuracy" ? `${(100 * value).toFixed(1)} %` : number(value, 4);
}

export function percent(share, digits = 0) {
  return isNumber(share) ? `${(100 * share).toFixed(digits)} %` : MISSING;
}

export function count(amount, one, many = `${one}s`) {
  return `${whole(amount)} ${amount === 1 ? one : many}`;
}

export function ago(unix) {
  if (!isNumber(unix)) return MISSING;
  const past = Date.now() / 1000 - unix;
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return new Date(unix * 1000).toLocaleDateString("en", { year: "numeric", month: "short", day: "numeric" });
}

export function clockTime(unix) {
  return isNumber(unix) ? new Date(unix * 1000).toLocaleTimeString("en-GB") : MISSING;
}

const KINDS = { laptop: "laptop", xavier_nx: "Xavier NX", jetson_tx2: "Jetson TX2" };
export function device(kind) {
  return KINDS[kind] ?? String(kind ?? MISSING).replaceAll("_", " ");
}

export function words(name) {
  return String(name).replaceAll("_", " ");
}

/** The marks of an axis, all with the same number of decimals; `unit` follows each. */
export function axisTexts(values, { unit = "", factor = 1 } = {}) {
  const scaled = values.map((value) => value * factor);
  const step = scaled.length > 1 ? Math.abs(scaled[1] - scaled[0]) : Math.abs(scaled[0] ?? 1) || 1;
  // 0.25 needs two decimals, 0.5 one.
  const shows = (digits) => Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) < 1e-6 * step * 10 ** digits;
  const decimals = [0, 1, 2, 3, 4, 5].find(shows) ?? 6;
  return scaled.map((value) => `${value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })}${unit}`);
}

/** Round steps for an axis: 1, 2 or 5 times a power of ten. */
export function ticks(low, high, wanted = 6) {
  if (!(high > low)) return [low];
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const result = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) {
    result.push(Number((place * step).toPrecision(12)));
  }
  return result;
}
