// Several runs over one another: curves, what differs beside results, arguments against results.
import { chart, readCurve } from "../parts/chart.js";
import { chartBar } from "../parts/chart_bar.js";
import { lineStyle } from "../parts/colours.js";
import { h, oncePerFrame, picker, toggle } from "../parts/dom.js";
import { ask, exported, follow } from "../parts/data.js";
import { duration, number } from "../parts/format.js";
import { parallelCoordinates, scatter } from "../parts/plots.js";
import { stateChip } from "../parts/state.js";

const MOST_CHARTS = 8;

export function compareView(main, { say, parts: [chosen] }) {
  const state = { gone: false, curves: new Map(), rows: new Map(), charts: [], hidden: new Set() };
  main.replaceChildren(h("h1", { class: "unseen" }, "Compare"));
  const begin = async () => {
    const { runs } = await ask("/api/runs");
    runs.forEach((row) => state.rows.set(row.id, row));
    const ids = (chosen ?? (exported ? runs.map((row) => row.id).join(",") : "")).split(",").filter(Boolean);
    if (ids.length < 2) return main.append(h("p", { class: "empty" }, "Choose two runs or more in the table of runs, by their boxes or with x, and press c."));
    const told = await ask("/api/compare", { runs: ids.join(",") });
    if (!state.gone) build(main, told, state, say);
  };
  begin().catch((error) => say(error.message));
  const stop = follow("", { runs: (change) => change.runs.forEach((row) => state.rows.set(row.id, row)), connected: (now) => main.classList.toggle("cut-off", !now) });
  return { stop: () => ((state.gone = true), stop(), state.charts.forEach(({ made }) => made.stop())) };
}

function build(main, told, state, say) {
  const runs = told.runs.map((id, at) => ({ id, name: state.rows.get(id)?.called || id, style: lineStyle(at) }));
  const names = Object.keys(told.metrics);
  const grid = h("div", { class: "charts" });
  const bar = chartBar([["step", "by step"], ["since", "by time since start"]], (newRange) => (newRange ? load() : draw()));
  state.charts = names.slice(0, MOST_CHARTS).map((name) => ({ name, made: chart(name, bar.setRange) }));
  grid.append(...state.charts.map(({ made }) => made.element));

  const load = async () => {
    const { by, range } = bar.options();
    const wanted = state.charts.map(({ name }) => name).join(",");
    const px = Math.round(Math.min(2000, grid.firstChild?.clientWidth || 600));
    const some = runs.map(async ({ id }) => {
      const start = by === "since" ? (state.rows.get(id)?.started_at ?? 0) : 0;
      const answer = await ask(`/api/runs/${encodeURIComponent(id)}/curves`, { names: wanted, by: by === "since" ? "time" : by, px, from: range && range[0] + start, to: range && range[1] + start });
      const curves = Object.entries(answer.curves).map(([name, curve]) => [name, readCurve(start ? { ...curve, x: curve.x.map((x) => x - start) } : curve)]);
      state.curves.set(id, new Map(curves));
    });
    for (const one of await Promise.allSettled(some)) if (one.reason) say(one.reason.message);
    draw();
  };
  const draw = oncePerFrame(() => {
    if (state.gone) return;
    for (const { name, made } of state.charts) {
      const lines = runs.map((run, at) => ({ name: run.name, curve: state.curves.get(run.id)?.get(name), style: lineStyle(at), id: run.id }));
      made.show(lines.filter((line) => line.curve?.x.length && !state.hidden.has(line.id)), [], { ...bar.options() });
    }
  });
  const table = resultTable(told, runs, state, draw);
  main.append(bar.element, h("h2", { class: "unseen" }, "Curves"), grid, table, differences(told), plotsPart(told, runs, (at) => table.see(at)));
  load();
}

// A row for each run: how it ended, its results, and the arguments in which they differ.
function resultTable(told, runs, state, draw) {
  const metrics = Object.keys(told.metrics);
  const args = Object.keys(told.arguments);
  const results = Object.keys(told.results).filter((name) => name !== "state" && told.results[name].some((value) => value !== null && value !== ""));
  const rows = runs.map((run, at) => {
    const shown = h("input", { type: "checkbox", checked: true, "aria-label": `show the curves of ${run.name}`, on: { change: () => {
      if (shown.checked) state.hidden.delete(run.id);
      else state.hidden.add(run.id);
      draw();
    } } });
    const line = h("span", { class: "line-sample" });
    line.style.borderTopColor = run.style.stroke;
    line.style.borderTopStyle = ["solid", "dashed", "dotted"][run.style.dash.length && (run.style.dash[0] > 4 ? 1 : 2)];
    return h("tr", {}, h("td", {}, shown), h("th", { scope: "row" }, line, h("a", { href: `#/run/${encodeURIComponent(run.id)}` }, run.name)),
      h("td", {}, told.results.state?.[at] ? stateChip(told.results.state[at]) : ""),
      metrics.map((name) => h("td", { class: "numeric", title: cellTitle(told.metrics[name][at]) }, number(told.metrics[name][at]?.best ?? told.metrics[name][at]?.last))),
      args.map((name) => h("td", {}, text(told.arguments[name][at]))), results.map((name) => h("td", { class: "numeric" }, name === "duration_s" ? duration(told.results[name][at]) : text(told.results[name][at]))));
  });
  const titles = [["shown"], ["run"], ["state"], ...metrics.map((name) => [name, "numeric"]), ...args.map((name) => [name]), ...results.map((name) => [name === "duration_s" ? "ran for" : name.replaceAll("_", " "), "numeric"])];
  const element = h("section", { "aria-label": "results and arguments" }, h("h2", {}, "Results beside what differs"),
    h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, titles.map(([title, numeric]) => h("th", { scope: "col", class: numeric ?? null }, title)))), h("tbody", {}, rows))));
  element.see = (at) => rows.forEach((row, place) => row.classList.toggle("seen", place === at));
  return element;
}

function cellTitle(metric) {
  return metric ? `last ${number(metric.last)} at step ${number(metric.last_step)}${metric.best === null || metric.best === undefined ? "" : `, best ${number(metric.best)} at step ${number(metric.best_step)}`}` : null;
}

function text(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : typeof value === "number" ? number(value) : String(value);
}

function differences(told) {
  const groups = [["spec", told.spec], ["environment", told.environment], ["packages", told.packages]].filter(([, rows]) => rows && Object.keys(rows).length);
  if (!groups.length) return h("p", { class: "note" }, "Spec, environment and packages are equal.");
  return h("div", {}, groups.map(([name, rows]) => h("details", { class: "events" }, h("summary", {}, `${name}: ${Object.keys(rows).length} differ`),
    h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, name), told.runs.map((id) => h("th", { scope: "col" }, id)))),
      h("tbody", {}, Object.entries(rows).map(([key, values]) => h("tr", {}, h("th", { scope: "row" }, key), values.map((value) => h("td", {}, text(value)))))))))));
}

// Parallel coordinates and a scatter: every argument that differs against one result.
function plotsPart(told, runs, onSee) {
  const args = Object.keys(told.arguments);
  const metrics = Object.keys(told.metrics);
  if (!args.length || !metrics.length) return h("p", { class: "note" }, "Where arguments differ, they are drawn against results here.");
  const place = h("div");
  const kept = { metric: metrics.includes("val_loss") ? "val_loss" : metrics[0], arg: args[0], log: false };
  const draw = () => {
    const result = { name: kept.metric, values: told.metrics[kept.metric].map((one) => one?.best ?? one?.last ?? null) };
    const columns = args.map((name) => ({ name, values: told.arguments[name] }));
    place.replaceChildren(parallelCoordinates([...columns, result], runs, onSee),
      scatter(columns.find(({ name }) => name === kept.arg), result, runs, { logX: kept.log, onSee }));
  };
  const set = (change) => (Object.assign(kept, change), draw());
  draw();
  return h("section", { "aria-label": "arguments against results" }, h("h2", {}, "Arguments against results"),
    h("div", { class: "bar" }, picker("result", metrics.map((name) => [name, name]), kept.metric, (metric) => set({ metric })),
      picker("argument", args.map((name) => [name, name]), kept.arg, (arg) => set({ arg })), toggle("log", false, (log) => set({ log }))), place);
}
