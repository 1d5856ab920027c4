// Several runs over one another, live: curves, what differs beside results, arguments against results.
import { inAddress } from "../parts/address.js";
import { followRuns } from "../parts/all_runs.js";
import { chart, readCurve } from "../parts/chart.js";
import { chartBar } from "../parts/chart_bar.js";
import { lineStyle } from "../parts/colours.js";
import { atMostEvery, button, choose, chosen, h, oncePerFrame, picker } from "../parts/dom.js";
import { ask, exported } from "../parts/data.js";
import { groupedRuns, meanCurve } from "../parts/grouping.js";
import { argumentsAgainstResults } from "./against.js";
import { resultTable, valueWords } from "./results.js";

const CHARTS_AT_FIRST = 8;
const GOING_ON_MS = 2000; // how often the curves of runs that go on are asked for

export function compareView(main, { say, parts: [refs] }) {
  const view = { ids: null, runs: [], told: null, curves: null, results: null, against: null, gone: false, building: false };
  const changed = new Set(); // runs of which something is other since their curves were asked for
  const failed = (error) => view.gone || say(error.message);
  main.replaceChildren(h("h1", { class: "unseen" }, "Compare"));

  const build = async () => {
    view.building = true;
    try {
      const told = await ask("/api/compare", { runs: view.ids.join(",") });
      if (view.gone) return;
      view.curves?.stop();
      Object.assign(view, shownRuns(told, known.rows()));
      view.curves = comparedCurves(view, known, say);
      view.results = resultTable(view, () => view.curves.draw());
      view.against = argumentsAgainstResults(view, (at) => view.results.see(at));
      main.replaceChildren(h("h1", { class: "unseen" }, "Compare"), ...view.curves.elements, view.results.element, differences(told), view.against.element);
      renew();
    } catch (error) {
      failed(error);
    }
    view.building = false;
  };
  const renew = () => {
    if (view.gone || view.building && !view.told) return;
    const rows = known.rows();
    const measured = view.ids.flatMap((id) => Object.keys(rows.get(id)?.metrics ?? {}));
    if (!view.building && measured.some((name) => !(name in view.told.metrics))) return build();
    view.runs.forEach((run) => (run.row = rows.get(run.id)));
    view.results.show();
    view.against.show();
  };
  const recolour = () => view.told && renew();
  document.addEventListener("theme", recolour);
  const loadCurves = atMostEvery(GOING_ON_MS, () => {
    if (!view.gone && view.curves) view.curves.load([...changed].splice(0));
    changed.clear();
  });
  const known = followRuns({
    changed: (ids) => {
      if (!view.ids) begin();
      if (!view.told) return;
      const mine = ids === null ? view.ids : ids.filter((id) => view.ids.includes(id));
      if (!mine.length) return;
      mine.forEach((id) => changed.add(id));
      renew();
      loadCurves();
    },
    failed, connected: (now) => main.classList.toggle("cut-off", !now),
  });
  const begin = () => {
    view.ids = (refs ?? (exported ? [...known.rows().keys()].join(",") : "")).split(",").filter(Boolean);
    if (view.ids.length >= 2) build();
    else main.append(h("p", { class: "empty" }, "Choose two runs or more in the table of runs, by their boxes or with x, and press c."));
  };
  return { stop: () => ((view.gone = true), document.removeEventListener("theme", recolour), known.stop(), view.curves?.stop()) };
}

function shownRuns(told, rows) {
  const hidden = new Set(inAddress("hidden"));
  const runs = told.runs.map((id, at) => ({ id, at, name: rows.get(id)?.called || id, row: rows.get(id), style: () => lineStyle(at), hidden: hidden.has(id) }));
  return { told, ids: told.runs, runs };
}

function comparedCurves({ told, runs }, known, say) {
  const curves = new Map(); // run -> {metric -> curve}
  const names = Object.keys(told.metrics);
  const grid = h("div", { class: "charts" });
  const bar = chartBar([["step", "by step"], ["since", "by time since start"], ["part", "by part done"]], (newRange) => (newRange ? load() : draw()));
  const ends = new Map(); // run -> its last step: what `by part done` is of
  const whole = new Map(); // run -> [first, last] of all that it has, by the axis that is shown
  const ways = [["", "none"], ...(runs.some(({ row }) => row?.group) ? [["sweep", "sweep"]] : []), ...(runs.some(({ row }) => row?.tags?.length) ? [["tag", "tag"]] : []), ...Object.keys(told.arguments).map((name) => [`arg ${name}`, name])];
  let group = chosen("group", "");
  if (!ways.some(([way]) => way === group)) group = "";
  const common = button("common part", () => {
    const known = [...whole.values()];
    const range = [Math.max(...known.map(([first]) => first)), Math.min(...known.map(([, last]) => last))];
    if (range[0] < range[1]) bar.setRange(range);
    else say("these runs have no part in common");
  }, { title: "as far as the shortest run goes" });
  bar.element.append(common, picker("group by", ways, group, (way) => (choose("group", (group = way)), draw())));
  let charts = [];
  let gone = false;
  const more = button("", () => (arrange(names.length), load()), { class: "more" });
  const arrange = (many) => {
    charts = names.slice(0, many).map((name, at) => charts[at] ?? { name, made: chart(name, bar.setRange) });
    grid.replaceChildren(...charts.map(({ made }) => made.element));
    more.hidden = charts.length === names.length;
    more.textContent = `${names.length - charts.length} more`;
  };
  const loadOne = async (id) => {
    const { by, range } = bar.options();
    const start = by === "since" ? (known.rows().get(id)?.started_at ?? 0) : 0;
    const unit = by === "part" ? await lastStep(id) : 1;
    const px = Math.round(Math.min(2000, grid.firstChild?.clientWidth || 600));
    const asked = { names: charts.map(({ name }) => name).join(","), by: by === "since" ? "time" : "step", px, from: range && range[0] * unit + start, to: range && range[1] * unit + start };
    const answer = await ask(`/api/runs/${encodeURIComponent(id)}/curves`, asked);
    const now = bar.options();
    if (now.by !== by || now.range !== range) return; // another part was asked for meanwhile
    curves.set(id, new Map(Object.entries(answer.curves).map(([name, curve]) => [name, readCurve({ ...curve, x: curve.x.map((x) => (x - start) / unit) })])));
    if (!range && answer.to !== null) whole.set(id, [(answer.from - start) / unit, (answer.to - start) / unit]);
  };
  const lastStep = async (id) => {
    const row = known.rows().get(id);
    if (!ends.has(id) || !row?.ended) ends.set(id, (await ask(`/api/runs/${encodeURIComponent(id)}/curves`, { names: charts.map(({ name }) => name).join(","), px: 16 })).to || 1);
    return ends.get(id);
  };
  const load = async (ids = runs.map(({ id }) => id)) => {
    const failures = (await Promise.allSettled(ids.map(loadOne))).filter((one) => one.reason);
    if (gone) return;
    if (failures.length) say(failures[0].reason.message);
    draw();
  };
  const draw = oncePerFrame(() => {
    if (gone) return;
    for (const { name, made } of charts) {
      const seen = runs.filter(({ hidden }) => !hidden);
      const curveOf = (run) => curves.get(run.id)?.get(name);
      const lines = group
        ? groupedRuns(seen, group).map((one, at) => ({ name: `${one.name} (${one.runs.length})`, curve: meanCurve(one.runs.map(curveOf).filter(Boolean)), style: lineStyle(at) }))
        : seen.map((run) => ({ name: run.name, curve: curveOf(run), style: run.style() }));
      made.show(lines.filter((line) => line.curve?.x.length), [], { ...bar.options(), what: group ? "group" : "run" });
    }
  });
  arrange(CHARTS_AT_FIRST);
  load();
  return {
    elements: [bar.element, h("h2", { class: "unseen" }, "Curves"), grid, more], draw, load,
    stop: () => ((gone = true), charts.forEach(({ made }) => made.stop())),
  };
}

function differences(told) {
  const groups = [["spec", told.spec], ["environment", told.environment], ["packages", told.packages]].filter(([, rows]) => rows && Object.keys(rows).length);
  if (!groups.length) return h("p", { class: "note" }, "Spec, environment and packages are equal.");
  return h("div", {}, groups.map(([name, rows]) => h("details", { class: "events" }, h("summary", {}, `${name}: ${Object.keys(rows).length} ${Object.keys(rows).length === 1 ? "differs" : "differ"}`),
    h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, name), told.runs.map((id) => h("th", { scope: "col" }, id)))),
      h("tbody", {}, Object.entries(rows).map(([key, values]) => h("tr", {}, h("th", { scope: "row" }, key), values.map((value) => h("td", {}, valueWords(value)))))))))));
}
