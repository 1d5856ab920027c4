// The words of the search field: those of `launch status`, and plain words that are looked for everywhere in a row.

const ENDED = ["succeeded", "failed", "interrupted", "cancelled", "lost"];
const UNITS = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 };

// A test for rows. `name:lr* state:failed,active tag:sweep cluster:a since:2d`, and any other word.
export function selection(text, now = Date.now() / 1000) {
  const tests = text.trim().split(/\s+/).filter(Boolean).map((word) => testOf(word, now));
  return (row) => tests.every((test) => test(row));
}

function testOf(word, now) {
  const found = /^(-?)(name|state|tag|cluster|since):(.+)$/.exec(word);
  if (!found) return containing(word.toLowerCase());
  const test = TESTS[found[2]](found[3], now);
  return found[1] ? (row) => !test(row) : test;
}

function containing(word) {
  return (row) => [row.id, row.name, row.called, row.note, row.cluster, row.state, row.headline, ...(row.tags ?? [])]
    .some((one) => one && one.toLowerCase().includes(word));
}

const TESTS = {
  name: (glob) => (row) => [row.id, row.name, row.called].some((one) => one && like(glob, one)),
  state: (words) => {
    const states = words.split(",");
    return (row) => states.some((one) => one === row.state || (one === "ended" && ENDED.includes(row.state))
      || (one === "active" && !ENDED.includes(row.state)));
  },
  tag: (tag) => (row) => (row.tags ?? []).includes(tag),
  cluster: (glob) => (row) => like(glob, row.cluster ?? ""),
  since: (age, now) => {
    const from = beginning(age, now);
    return (row) => from === null || (row.submitted_at ?? 0) >= from;
  },
};

function like(glob, text) {
  const pattern = glob.replace(/[.+^${}()|\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".");
  try {
    return new RegExp(`^${pattern}$`, "s").test(text);
  } catch {
    return glob === text; // a bracket that is not closed stands for itself
  }
}

// `90s`, `2d`, `1w` ago, or a day; null while it is half typed.
function beginning(age, now) {
  const found = /^(\d{1,9})([smhdw])$/.exec(age);
  if (found) return now - Number(found[1]) * UNITS[found[2]];
  const day = Date.parse(`${age}T00:00:00`);
  return Number.isNaN(day) ? null : day / 1000;
}
