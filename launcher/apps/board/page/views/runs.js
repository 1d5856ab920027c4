// All runs of all clusters, live.
import { afterPause, button, choose, chosen, h, oncePerFrame, prose } from "../parts/dom.js";
import { followRuns } from "../parts/all_runs.js";
import { selection } from "../parts/selection.js";
import { themed } from "../parts/colours.js";
import { plural } from "../parts/format.js";
import { bigTable } from "../parts/table.js";
import { columnChooser, columnsFor } from "./run_columns.js";
import { grouped, groupsOf } from "./run_groups.js";

const MOST_COMPARED = 20;
const STANDING_WIDTH = 1230; // of the columns that are always there
const picked = new Set(); // ids that are to be compared; they stay chosen while one looks at a run
const folded = new Map(); // id of a group -> whether a person has opened it
let words = "";

export function runsView(main, { say, go }) {
  words = chosen("words", "");
  const known = followRuns({
    changed: (_, gone) => (gone.forEach((id) => picked.delete(id)), draw()),
    failed: (error) => say(error.message), connected: (now) => main.classList.toggle("cut-off", !now),
  });
  let shown = chosen("columns", []);
  let sorted = chosen("sort", { key: "submitted", down: true });
  let columns = [];
  let made = ""; // for which choice and width the columns were made

  const search = h("input", {
    type: "search", id: "search", value: words, placeholder: "words, state:active, name:lr*, tag:sweep, cluster:a, since:2d",
    "aria-label": "search runs", autocomplete: "off", spellcheck: "false",
    on: { input: afterPause(60, () => (choose("words", (words = search.value)), folded.clear(), draw())),
      keydown: (event) => event.key === "ArrowDown" && (table.enter(), event.preventDefault()) },
  });
  const count = h("span", { class: "count", role: "status" });
  const compare = button("", () => go(`#/compare/${[...picked].map(encodeURIComponent).join(",")}`), { class: "primary" });
  let first = []; // ids of what is shown, in its order, as many as can be compared
  const these = button("", () => go(`#/compare/${first.map(encodeURIComponent).join(",")}`), { title: "compare what is found, such as the trials of a sweep" });
  const clear = button("none", () => (picked.clear(), draw()), { title: "choose none" });
  const pick = (row) => {
    const runs = row.members ?? [row];
    const wanted = !isPicked(row);
    for (const { id } of runs) {
      if (!wanted) picked.delete(id);
      else if (picked.size < MOST_COMPARED) picked.add(id);
      else if (!picked.has(id)) say(`${MOST_COMPARED} runs at most are compared`);
    }
    draw();
  };
  const isPicked = (row) => (row.members ?? [row]).every(({ id }) => picked.has(id));
  const isOpen = (id) => folded.get(id) ?? words.trim() !== ""; // what is searched for is seen
  const fold = (row, open = !row.open) => (folded.set(row.groupId, open), draw());
  let groups = new Map();
  const table = bigTable({
    label: "runs", keyOf: (row) => row.id, rowHeight: parseInt(themed("row")), onOpen: (row) => (row.members ? fold(row) : go(`#/run/${encodeURIComponent(row.id)}`)),
    onPick: pick, isPicked, onFold: (row, open) => row.members && fold(row, open),
    parentOf: (row) => (!row.members && groups.has(row.group?.id) ? `group/${row.group.id}` : null),
    onSort: (column) => {
      sorted = { key: column.key, down: sorted.key === column.key ? !sorted.down : column.key !== "name" };
      choose("sort", sorted);
      draw();
    },
  });
  const chooser = columnChooser(() => known.rows().values(), () => shown, (names) => (choose("columns", (shown = names)), draw()));
  const states = h("div", { class: "tally", role: "group", "aria-label": "states" });
  const empty = h("p", { class: "empty", hidden: true });

  const draw = oncePerFrame(() => {
    const rows = known.rows();
    const width = table.element.clientWidth;
    const matches = selection(words);
    const found = [...rows.values()].filter(matches);
    const beside = shown.length ? shown : differing(found).slice(0, Math.max(0, Math.floor((width - STANDING_WIDTH) / 116)));
    const wanted = JSON.stringify([beside, width < 700, width]);
    if (wanted !== made) [columns, made] = [columnsFor(beside, width, { pick, isPicked, fold }), wanted];
    const ordered = inOrder(found, columns, sorted);
    groups = groupsOf(rows.values());
    table.show(grouped(ordered, groups, isOpen), columns, sorted);
    first = ordered.slice(0, MOST_COMPARED).map((row) => row.id);
    these.hidden = !words.trim() || first.length < 2 || picked.size > 0;
    these.textContent = found.length > first.length ? `compare the first ${first.length}` : `compare these ${first.length}`;
    count.textContent = found.length === rows.size ? plural(rows.size, "run") : `${found.length} of ${plural(rows.size, "run")}`;
    compare.hidden = clear.hidden = picked.size === 0;
    compare.textContent = `compare ${picked.size}`;
    empty.hidden = found.length > 0;
    empty.replaceChildren(...prose(!known.answered() ? "Looking\u2026" : rows.size ? "No run is like that." : "No runs yet. `launch submit` or `launch run` begins one, and it appears here."));
    tally(states, rows, (word) => (search.value = words = toggled(words, word), choose("words", words), folded.clear(), draw()));
  });

  main.replaceChildren(
    h("h1", { class: "unseen" }, "Runs"),
    h("div", { class: "bar" }, search, states, count, these, compare, clear, chooser),
    table.element, empty);
  const watcher = new ResizeObserver(draw);
  watcher.observe(table.element);
  return { stop: () => (watcher.disconnect(), known.stop()), keys: { c: () => picked.size && compare.click() } };
}

// The arguments that most of these runs have and in which they differ: columns for who has chosen none.
export function differing(rows) {
  const values = new Map(); // name -> values, one for each run that has it
  for (const { args } of rows) for (const [name, value] of Object.entries(args ?? {})) values.set(name, [...(values.get(name) ?? []), value]);
  return [...values].filter(([, all]) => new Set(all).size > 1 && 2 * all.length >= rows.length).map(([name]) => `arg ${name}`);
}

function inOrder(rows, columns, { key, down }) {
  const by = columns.find((column) => column.key === key)?.sort ?? ((row) => row.submitted_at ?? 0);
  const keyed = rows.map((row) => [by(row), row]);
  const way = down ? -1 : 1;
  keyed.sort(([a, one], [b, other]) => {
    if (a === b) return one.id < other.id ? 1 : -1;
    if (a === null || a === undefined || Number.isNaN(a)) return 1; // what is not known comes last, either way
    if (b === null || b === undefined || Number.isNaN(b)) return -1;
    if (typeof a !== typeof b) return (typeof a === "number" ? -1 : 1) * way; // numbers, then words
    return (a < b ? -1 : 1) * way;
  });
  return keyed.map(([, row]) => row);
}

// How many are in each state, each a button that shows only those.
function tally(element, rows, onChoose) {
  const counts = new Map();
  for (const row of rows.values()) counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
  const chosen = words.split(/\s+/);
  const signs = [...counts].sort(([a], [b]) => (a < b ? -1 : 1));
  const now = JSON.stringify([signs, chosen]);
  if (element.dataset.now === now) return;
  element.dataset.now = now;
  element.replaceChildren(...signs.map(([state, many]) =>
    button(h("span", { class: `state state-${state}` }, `${many} ${state}`), () => onChoose(`state:${state}`),
      { "aria-pressed": String(chosen.includes(`state:${state}`)) })));
}

function toggled(text, word) {
  const all = text.split(/\s+/).filter(Boolean);
  return (all.includes(word) ? all.filter((one) => one !== word) : [...all.filter((one) => !one.startsWith("state:")), word]).join(" ");
}
