// Numbers, times and sizes as people read them.

// Five digits that matter; `nan` and infinities arrive as words and stay words.
export function number(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return { nan: "NaN", inf: "\u221e", "-inf": "\u2212\u221e" }[value] ?? value;
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en").replaceAll(",", "\u202f");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(3).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(5)));
}

// `1 rank`, `2 ranks`
export function plural(count, word, words = `${word}s`) {
  return `${number(count)} ${count === 1 ? word : words}`;
}

// As many of a list as can be seen, evenly spread over all of it, with its first and its last.
export function spread(list, most) {
  if (list.length <= most) return list;
  return Array.from({ length: most }, (_, at) => list[Math.round((at * (list.length - 1)) / (most - 1))]);
}

// The number that a value of the server stands for.
export function real(value) {
  if (typeof value === "number") return value;
  return { nan: NaN, inf: Infinity, "-inf": -Infinity }[value] ?? null;
}

// `47 s`, `12 min`, `3 h 05 min`, `2 d 4 h`
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds > 0 && seconds < 9.95) return `${Number(seconds.toFixed(1))} s`;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  const min = Math.floor(s / 60);
  if (min < 10) return `${min} min ${two(s % 60)} s`;
  if (min < 60) return `${min} min`;
  const hours = Math.floor(min / 60);
  if (hours < 48) return `${hours} h ${two(min % 60)} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

function two(value) {
  return String(value).padStart(2, "0");
}

export function ago(at, now = Date.now() / 1000) {
  return at === null || at === undefined ? "" : `${duration(now - at)} ago`;
}

// The hour here; with the day where it is another one than today.
export function clockTime(at) {
  if (at === null || at === undefined) return "";
  const when = new Date(at * 1000);
  const hour = `${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}`;
  return when.toDateString() === new Date().toDateString() ? hour : `${dayOf(when)} ${hour}`;
}

function dayOf(when) {
  return `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "";
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let size = count;
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) [size, unit] = [size / 1000, unit + 1];
  return `${unit ? Number(size.toPrecision(3)) : size} ${units[unit]}`;
}

export function percent(part) {
  return part === null || part === undefined ? "" : `${Math.round(part * 100)} %`;
}

// Rate of steps: per second, or the other way round where steps are slow.
export function pace(rate) {
  if (!rate) return "";
  return rate >= 1 ? `${Number(rate.toPrecision(3))} /s` : `${duration(1 / rate)} each`;
}

const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g;
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

// A line without what would colour a terminal, move a cursor or turn the direction of writing.
export function plainText(text) {
  return String(text).replace(ESCAPES, "").replace(UNSEEN, "\ufffd");
}
