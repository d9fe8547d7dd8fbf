// Numbers, sizes, times and durations as people read them.

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** A whole number, all of it. */
export const count = (n) => (n === null || n === undefined ? "–" : GROUPED.format(n));

/** A whole number of things: 1 record, 2 records. */
export const counted = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;

/** A number, roughly: 1.2M. */
export function short(n) {
  if (n === null || n === undefined) return "–";
  return Math.abs(n) < 1000 ? String(Math.round(n * 10) / 10) : SHORT.format(n);
}

/** Bytes in binary units. */
export function bytes(n) {
  if (n === null || n === undefined) return "–";
  let unit = 0;
  let size = n;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size >= 100 || unit === 0 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
}

/** Microseconds, in the unit that suits. */
export function micros(n) {
  if (n === null || n === undefined) return "–";
  if (n < 1000) return `${Math.round(n)} µs`;
  return n < 1e6 ? `${(n / 1000).toFixed(1)} ms` : `${(n / 1e6).toFixed(2)} s`;
}

/** A duration in seconds, in at most two units. */
export function seconds(n) {
  if (n === null || n === undefined) return "–";
  if (n < 1) return `${Math.round(n * 1000)} ms`;
  if (n < 60) return `${n.toFixed(1)} s`;
  const parts = [];
  let rest = Math.round(n);
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    if (rest >= size && parts.length < 2) {
      parts.push(`${Math.floor(rest / size)} ${unit}`);
      rest %= size;
    }
  }
  return parts.join(" ");
}

const decimals = [1, 2, 5];
const decades = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => decimals.map((n) => Number(`${n}e${from + i}`))).flat();

/** What a chart may draw: how its numbers are shown, and between which steps its axis chooses. */
export const KINDS = {
  count: { show: short, steps: decades(0, 14) },
  rate: { show: short, steps: decades(-1, 14) },
  bytes: { show: bytes, steps: Array.from({ length: 50 }, (_, n) => 2 ** n) },
  micros: { show: micros, steps: decades(0, 10) },
  seconds: { show: seconds, steps: [...decades(-2, -1), 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, ...Array.from({ length: 12 }, (_, n) => 86400 * 2 ** n)] },
};

/** The labels of an axis: the steps as numbers, without what binary fractions or rounding add. */
export function ticks(kind, values) {
  return values.map((value) => (value === null ? "" : KINDS[kind].show(Number(value.toPrecision(9))).replace(/\.0(?=\D|$)/, "")));
}

/** An offset as it is shown or typed: 1234567, 1,234,567 and 1_234_567 are one; null for none. */
export function parseOffset(text) {
  const given = String(text).trim();
  if (!/^(\d{1,16}|\d{1,3}([,_\u202f ]\d{3}){1,5})$/.test(given)) return null;
  return Number(given.replace(/\D/g, ""));
}

/** A place as the tail shows it: an offset, or partition:offset; null for what is neither. */
export function parsePlace(text) {
  const [first, second] = String(text).split(":");
  const [partition, offset] = second === undefined ? [undefined, parseOffset(first)] : [parseOffset(first), parseOffset(second)];
  return offset === null || partition === null ? null : { partition, offset };
}

const pad = (n, width = 2) => String(n).padStart(width, "0");

/** A time on this machine's clock, to the millisecond. */
export function moment(ms) {
  if (ms === null || ms === undefined) return "–";
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return `${ms} ms`;
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}

/** The zone of a time on this machine's clock: UTC, or UTC+05:30. */
export function zone(ms = Date.now()) {
  const ahead = -new Date(ms).getTimezoneOffset();
  if (!ahead || Number.isNaN(ahead)) return "UTC";
  return `UTC${ahead < 0 ? "-" : "+"}${pad(Math.floor(Math.abs(ahead) / 60))}:${pad(Math.abs(ahead) % 60)}`;
}

/** A time with its zone, for where no column says it. */
export const instant = (ms) => (ms === null || ms === undefined ? "–" : `${moment(ms)} ${zone(ms)}`);

/** The head of a column of times. */
export const zoned = (label) => `${label}, ${zone()}`;

/** A time, without its day where that is today. */
export const recent = (ms) => moment(ms).replace(moment(Date.now()).slice(0, 11), "");

/** From one time to another: the day only where it is not today, and only once. */
export function span(from, to) {
  if (from === null && to === null) return "–";
  const today = moment(Date.now()).slice(0, 11);
  const [start, end] = [moment(from).slice(0, 19), moment(to).slice(0, 19)];
  const late = from !== null && start.slice(0, 11) === end.slice(0, 11) ? end.slice(11) : end.replace(today, "");
  if (from === null) return `until ${late}`;
  return start === end ? start.replace(today, "") : `${start.replace(today, "")} – ${late}`;
}

/** A setting's value with its unit made readable. */
export function setting(key, value) {
  if (value === -1) return key.endsWith("port") ? "none" : "no limit";
  if (key.endsWith("port")) return String(value);
  if (value === -2) return "as the whole";
  if (typeof value !== "number") return String(value) || "none";
  if (key.endsWith(".ms")) return `${count(value)} ms (${seconds(value / 1000)})`;
  return key.endsWith(".bytes") ? `${count(value)} (${bytes(value)})` : count(value);
}

/** What a text field of a time means: milliseconds, or null for nothing. */
export function parseTime(text) {
  const given = text.trim();
  if (!given) return null;
  if (/^\d{13}$/.test(given)) return Number(given);
  const ago = /^-(\d+)(s|m|h|d)$/.exec(given);
  if (ago) return Date.now() - Number(ago[1]) * { s: 1e3, m: 6e4, h: 36e5, d: 864e5 }[ago[2]];
  const [, clock, mark = ""] = /^(.*?)\s*(Z|(?:UTC)?(?:[+-]\d\d:?\d\d)?)$/.exec(given);
  const far = mark === "UTC" ? "Z" : mark.replace("UTC", "");
  const whole = /^\d{4}-\d\d-\d\d$/.test(clock) ? `${clock}T00:00:00` : clock.replace(" ", "T");
  const at = new Date(whole + far).getTime();
  if (Number.isNaN(at)) throw new Error(`“${given}” is not a time; write 2026-01-31 12:00:00, the same with UTC+01:00 behind it, or -15m`);
  return at;
}
