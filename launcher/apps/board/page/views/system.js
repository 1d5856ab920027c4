// What a run's machines and ranks used over time, from the samples that its agents keep.
import { chart, readCurve } from "../parts/chart.js";
import { chartBar } from "../parts/chart_bar.js";
import { lineStyle } from "../parts/colours.js";
import { ask } from "../parts/data.js";
import { atMostEvery, h, oncePerFrame } from "../parts/dom.js";
import { bytes, number } from "../parts/format.js";

const MOST_TOLD_APART = 21; // that can be told apart
const RENEWED_MS = 10000;
const CHARTS = [
  ["GPU use, %", /^node\d+\/gpu\d+\/busy$/, number], ["GPU memory", /^node\d+\/gpu\d+\/gpu_memory$/, bytes],
  ["CPU of ranks, cores", /^rank\d+\/cpu$/, number], ["memory of ranks", /^rank\d+\/memory$/, bytes], ["GPU memory of ranks", /^rank\d+\/gpu_memory$/, bytes],
  ["CPU of nodes, cores", /^node\d+\/cpu$/, number], ["memory of nodes", /^node\d+\/memory$/, bytes],
  ["network in, bytes/s", /^node\d+\/received$/, bytes], ["network out, bytes/s", /^node\d+\/sent$/, bytes],
  ["disk read, bytes/s", /^node\d+\/read$/, bytes], ["disk written, bytes/s", /^node\d+\/written$/, bytes],
];

// `node0/gpu1/busy` -> `node 0 GPU 1`
function lineName(name) {
  return name.split("/").slice(0, -1).join(" ").replace(/(node|gpu|rank)(\d+)/g, "$1 $2").replace("gpu", "GPU");
}

export function systemPart(id, { say, ended }) {
  const grid = h("div", { class: "charts" });
  const none = h("p", { class: "empty", hidden: true });
  const bar = chartBar([["time", "by time"]], (newRange) => (newRange ? load() : draw()));
  const charts = new Map(); // title -> what chart() gave
  let curves = {};
  let gone = false;
  const load = async () => {
    try {
      const { range } = bar.options();
      const answer = await ask(`/api/runs/${encodeURIComponent(id)}/curves`, { of: "system", by: "time", px: 600, from: range?.[0], to: range?.[1] });
      curves = answer.curves;
      none.textContent = ended() ? "The run ended before a sample was taken: agents look every five seconds." : "No sample yet: agents look every five seconds while ranks run.";
      none.hidden = answer.names.length > 0;
      bar.element.hidden = !none.hidden;
      draw();
    } catch (error) {
      if (!gone) say(error.message);
    }
  };
  const draw = oncePerFrame(() => {
    if (gone) return;
    const shown = CHARTS.map(([title, pattern, words]) => [title, Object.keys(curves).filter((name) => pattern.test(name)), words]).filter(([, names]) => names.length);
    for (const [title] of shown) if (!charts.has(title)) charts.set(title, chart(title, bar.setRange));
    grid.replaceChildren(...shown.map(([title]) => charts.get(title).element));
    for (const [title, names, words] of shown) {
      const lines = names.slice(0, MOST_TOLD_APART).map((name, at) => ({ name: lineName(name), curve: readCurve(curves[name]), style: lineStyle(at) }));
      charts.get(title).show(lines, [], { ...bar.options(), logX: false, words, what: "line" });
    }
  });
  const again = atMostEvery(RENEWED_MS, () => gone || document.hidden || ended() || load());
  load();
  return {
    element: h("section", { "aria-label": "system" }, bar.element, grid, none), renew: again,
    stop: () => ((gone = true), charts.forEach((one) => one.stop())),
  };
}
