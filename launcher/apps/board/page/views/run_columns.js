// What the table of runs can show, and which of it is shown.
import { button, h, prose } from "../parts/dom.js";
import { ago, clockTime, duration, number, pace, real } from "../parts/format.js";
import { spark } from "../parts/spark.js";
import { stateChip } from "../parts/state.js";

const NARROW = 700; // pixels: below, columns that do not fit are left out

// The columns for a choice of names of arguments and metrics, in a table as wide as this.
export function columnsFor(shown, width, { pick, isPicked, fold }) {
  const all = [choosing(pick, isPicked), ...standing(width, fold), ...shown.map(chosenColumn)];
  if (width >= NARROW) return all;
  const ranked = ["pick", "name", "spark", "state", "step"].map((key) => all.find((one) => one.key === key));
  let left = width;
  const kept = ranked.filter((column) => (left -= column.width) >= 0);
  return all.filter((column) => kept.includes(column));
}

function choosing(pick, isPicked) {
  return { key: "pick", title: "compare", quiet: true, width: 34, cell: (row) => {
    const box = h("input", { type: "checkbox", tabindex: "-1", "aria-label": `compare ${row.name}`, on: { change: () => pick(row) } });
    box.checked = isPicked(row);
    return box;
  } };
}

function standing(width, fold) {
  const narrow = width < NARROW;
  return [
    { key: "name", title: "run", width: narrow ? 190 : 248, cell: (row) => nameCell(row, narrow, fold), sort: (row) => row.called || row.name },
    { key: "state", title: "state", width: 118, cell: (row) => stateChip(row.state), sort: (row) => row.state },
    { key: "spark", title: "loss", width: 112, cell: (row) => (row.members ? "" : spark(row.spark, lossWords(row))), sort: (row) => real(row.metrics?.loss ?? null) },
    { key: "step", title: "step", width: 150, numeric: true, cell: stepCell, sort: (row) => row.step },
    { key: "eta", title: "to go", width: 100, numeric: true, cell: (row) => duration(row.eta_s), sort: (row) => row.eta_s },
    { key: "rate", title: "rate", width: 96, numeric: true, cell: (row) => pace(row.rate), sort: (row) => row.rate },
    { key: "took", title: "ran for", width: 100, numeric: true, cell: (row) => duration(ranFor(row)), sort: ranFor },
    { key: "submitted", title: "submitted", width: 118, numeric: true, cell: (row) => timeCell(row.submitted_at), sort: (row) => row.submitted_at },
    { key: "restarts", title: "restarts", width: 84, numeric: true, cell: (row) => number(row.restarts || null), sort: (row) => row.restarts },
    { key: "cluster", title: "cluster", width: 100, cell: (row) => clusterCell(row), sort: (row) => row.cluster },
  ];
}

function chosenColumn(name) {
  const kind = name.slice(0, name.indexOf(" "));
  const key = name.slice(name.indexOf(" ") + 1);
  const of = { arg: (row) => row.args?.[key], metric: (row) => row.metrics?.[key], best: (row) => row.best?.[key]?.[0] }[kind];
  const numeric = kind !== "arg";
  return { key: name, title: kind === "best" ? `best ${key}` : key, hint: kind, width: 116, numeric,
    cell: (row) => (numeric ? number(of(row)) : h("span", { class: "cut", title: of(row) }, of(row) ?? "")), sort: (row) => sortable(of(row)) };
}

// Arguments are words, but those that are numbers come in the order of numbers.
function sortable(value) {
  if (value === null || value === undefined || value === "") return null;
  const found = Number(value);
  return Number.isNaN(found) ? (real(value) ?? String(value)) : found;
}

function nameCell(row, narrow, fold) {
  const second = row.headline || row.note || (row.called ? row.name : "");
  return h("div", { class: "named" },
    h("div", { class: "cut" },
      narrow ? h("span", { class: `state state-${row.state} only-sign` }, stateChip(row.state).firstChild) : null,
      row.members
        ? button([h("span", { "aria-hidden": "true" }, row.open ? "\u25be " : "\u25b8 "), row.called], () => fold(row), { class: "fold", tabindex: "-1", "aria-expanded": String(row.open) })
        : h("a", { href: `#/run/${encodeURIComponent(row.id)}`, tabindex: "-1", title: row.id }, row.called || row.id),
      (row.tags ?? []).map((tag) => h("span", { class: "tag" }, tag))),
    second ? h("div", { class: "cut second", title: second }, prose(second)) : null);
}

function stepCell(row) {
  if (row.step === null || row.step === undefined) return "";
  if (!row.total) return number(row.step);
  return h("div", {}, `${number(row.step)} / ${number(row.total)}`,
    h("progress", { max: row.total, value: Math.min(row.step, row.total), "aria-label": "steps done" }));
}

function ranFor(row) {
  return row.started_at ? (row.ended_at ?? Date.now() / 1000) - row.started_at : null;
}

function timeCell(at) {
  return h("time", { title: clockTime(at) }, ago(at));
}

function clusterCell(row) {
  const old = row.as_of ? h("span", { class: "second", title: `silent: last known ${clockTime(row.as_of)}` }, ` ${ago(row.as_of)}`) : null;
  return h("span", { class: "cut" }, row.cluster ?? "", old);
}

function lossWords(row) {
  return row.metrics?.loss === undefined ? "curve of the loss" : `loss now ${number(row.metrics.loss)}`;
}

// The part of the bar where columns of arguments and metrics are chosen.
export function columnChooser(allRows, shown, onChange) {
  const list = h("div", { class: "menu" });
  const opened = h("details", { class: "chooser", on: { toggle: () => opened.open && fill(), keydown: (event) => event.key === "Escape" && (opened.open = false, opened.firstChild.focus()) } },
    h("summary", {}, "columns"), list);
  const fill = () => {
    const now = new Set(shown());
    const known = { arg: new Set(), metric: new Set(), best: new Set() };
    for (const row of allRows()) {
      Object.keys(row.args ?? {}).forEach((name) => known.arg.add(name));
      Object.keys(row.metrics ?? {}).forEach((name) => known.metric.add(name));
      Object.keys(row.best ?? {}).forEach((name) => known.best.add(name));
    }
    const titles = { arg: "arguments", metric: "metrics, now", best: "metrics, best" };
    const groups = Object.entries(known).filter(([, names]) => names.size).map(([kind, names]) =>
      h("fieldset", {}, h("legend", {}, titles[kind]), [...names].sort().map((name) => {
        const box = h("input", { type: "checkbox", on: { change: () => {
          if (box.checked) now.add(`${kind} ${name}`);
          else now.delete(`${kind} ${name}`);
          onChange([...now]);
        } } });
        box.checked = now.has(`${kind} ${name}`);
        return h("label", {}, box, name);
      })));
    list.replaceChildren(...(groups.length ? groups : [h("p", {}, "no run has arguments or metrics yet")]));
  };
  document.addEventListener("click", (event) => !opened.contains(event.target) && (opened.open = false));
  return opened;
}
