// What came of several runs, beside the arguments in which they differ.
import { putInAddress } from "../parts/address.js";
import { h, toggle } from "../parts/dom.js";
import { duration, number, plural, real } from "../parts/format.js";
import { stateChip } from "../parts/state.js";

// One metric of a run as it is now: {last, last_step, best, best_step}, or null where nobody has measured it.
export function figureOf(told, run, name) {
  const figure = told.metrics[name][run.at];
  const last = run.row?.metrics?.[name];
  if (last === undefined) return figure;
  const [best, best_step] = run.row.best?.[name] ?? [figure?.best ?? null, figure?.best_step ?? null];
  return { last, last_step: last === figure?.last ? figure.last_step : run.row.step, best, best_step };
}

// {element, show(), see(index or null)}; `onHide` is called when other curves are to be shown.
export function resultTable({ told, runs }, onHide) {
  const metrics = Object.keys(told.metrics);
  const args = Object.keys(told.arguments);
  const results = Object.keys(told.results).filter((name) => name !== "state" && told.results[name].some((value) => value !== null && value !== ""));
  const hide = () => {
    const hidden = runs.filter((run) => run.hidden).map(({ id }) => id);
    putInAddress("hidden", hidden.length ? hidden : null);
    onHide();
  };
  const rows = runs.map((run) => {
    const shown = h("input", { type: "checkbox", checked: !run.hidden, "aria-label": `show the curves of ${run.name}`, on: { change: () => ((run.hidden = !shown.checked), hide()) } });
    return h("tr", {}, h("td", {}, shown), h("th", { scope: "row" }, sample(run), h("a", { href: `#/run/${encodeURIComponent(run.id)}` }, run.name)), h("td"),
      metrics.map(() => h("td", { class: "numeric" })), args.map((name) => h("td", {}, valueWords(told.arguments[name][run.at]))), results.map(() => h("td", { class: "numeric" })));
  });
  const titles = [["shown"], ["run"], ["state"], ...metrics.map((name) => [[name, h("span", { class: "second which" })], "numeric"]), ...args.map((name) => [name]), ...results.map((name) => [name === "duration_s" ? "ran for" : name.replaceAll("_", " "), "numeric"])];
  let withEqual = false;
  const equal = toggle("", false, (on) => ((withEqual = on), show()), { hidden: true });
  const element = h("section", { "aria-label": "results and arguments" }, h("h2", {}, "Results beside what differs"), h("div", { class: "bar" }, equal),
    h("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "table of results" }, h("table", {}, h("thead", {}, h("tr", {}, titles.map(([title, numeric]) => h("th", { scope: "col", class: numeric ?? null }, title)))), h("tbody", {}, rows))));
  const head = element.querySelector("thead tr").children;
  const showColumns = () => {
    const same = metrics.map((name) => isEqualInAll(runs.map((run) => figureOf(told, run, name))));
    metrics.forEach((name, column) => {
      head[3 + column].querySelector(".which").textContent = runs.some((run) => isKnown(figureOf(told, run, name)?.best)) ? " best" : " last";
      for (const cells of [head, ...rows.map((row) => row.children)]) cells[3 + column].hidden = same[column] && !withEqual;
    });
    const many = same.filter(Boolean).length;
    equal.hidden = many === 0;
    equal.textContent = `show ${plural(many, "metric")} equal in all runs`;
  };
  const show = () => (showColumns(), showRows());
  const showRows = () => runs.forEach((run, at) => {
    const cells = rows[at].children;
    rows[at].querySelector(".line-sample").style.borderTopColor = run.style().stroke;
    const state = run.row?.state ?? told.results.state?.[run.at];
    if (state) cells[2].replaceChildren(stateChip(state));
    metrics.forEach((name, column) => showFigure(cells[3 + column], figureOf(told, run, name)));
    results.forEach((name, column) => (cells[3 + metrics.length + args.length + column].textContent = resultWords(name, told, run)));
  });
  show();
  return { element, show, see: (at) => rows.forEach((row, place) => row.classList.toggle("seen", place === at)) };
}

function sample(run) {
  const { dash } = run.style();
  const line = h("span", { class: "line-sample" });
  line.style.borderTopStyle = ["solid", "dashed", "dotted"][dash.length && (dash[0] > 4 ? 1 : 2)];
  return line;
}

// Whether all runs have one and the same value of a metric, best and last.
export function isEqualInAll(figures) {
  return figures.every((one) => one && one.last === figures[0]?.last && one.best === figures[0]?.best);
}

function isKnown(value) {
  return value !== null && value !== undefined;
}

// The best where it is known which way is better, else the last; that it is none any more is said beside it.
function showFigure(cell, figure) {
  if (!figure) return cell.replaceChildren();
  const best = isKnown(figure.best);
  const odd = !Number.isFinite(real(figure.last));
  cell.title = `last ${number(figure.last)} at step ${number(figure.last_step)}${best ? `, best ${number(figure.best)} at step ${number(figure.best_step)}` : ""}`;
  cell.replaceChildren(best ? number(figure.best) : "", odd ? h("span", { class: "wrong" }, `${best ? ", now " : ""}${number(figure.last)}`) : best ? "" : number(figure.last));
}

function resultWords(name, told, run) {
  const { row } = run;
  if (name === "duration_s") return duration(row?.started_at ? (row.ended_at ?? Date.now() / 1000) - row.started_at : told.results[name][run.at]);
  return valueWords(name === "step" ? (row?.step ?? told.results[name][run.at]) : told.results[name][run.at]);
}

export function valueWords(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : typeof value === "number" ? number(value) : String(value);
}
