// Arguments against one result: all of them as parallel coordinates, one of them as a scatter.
import { h, picker, toggle } from "../parts/dom.js";
import { parallelCoordinates, scatter } from "../parts/plots.js";
import { figureOf } from "./results.js";

// {element, show()}; `onSee(index or null)` for the run under the pointer.
export function argumentsAgainstResults({ told, runs }, onSee) {
  const args = Object.keys(told.arguments);
  const metrics = Object.keys(told.metrics);
  if (!args.length || !metrics.length) return { element: h("p", { class: "note" }, "Where arguments differ, they are drawn against results here."), show() {} };
  const place = h("div");
  const kept = { metric: metrics.includes("val_loss") ? "val_loss" : metrics[0], arg: args[0], log: false, logResult: false };
  let drawn = "";
  const columns = args.map((name) => ({ name, values: told.arguments[name] }));
  const show = () => {
    const figures = runs.map((run) => figureOf(told, run, kept.metric));
    const result = { name: kept.metric, values: figures.map((one) => one?.best ?? one?.last ?? null) };
    const now = JSON.stringify([kept, result]);
    if (now === drawn) return;
    drawn = now;
    place.replaceChildren(parallelCoordinates([...columns, result], runs, { ...kept, onSee }),
      scatter(columns.find(({ name }) => name === kept.arg), result, runs, { ...kept, onSee }));
  };
  const set = (change) => (Object.assign(kept, change), show());
  const element = h("section", { "aria-label": "arguments against results" }, h("h2", {}, "Arguments against results"),
    h("div", { class: "bar" }, picker("result", metrics.map((name) => [name, name]), kept.metric, (metric) => set({ metric })),
      picker("argument", args.map((name) => [name, name]), kept.arg, (arg) => set({ arg })),
      toggle("log arguments", false, (log) => set({ log })), toggle("log result", false, (logResult) => set({ logResult }))), place);
  show();
  return { element, show };
}
