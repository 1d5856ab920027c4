// Drawings of arguments against results: a line per run over several axes, and a point per run over two.
import { h, svg } from "./dom.js";
import { number, real } from "./format.js";

const PLOT_WIDTH = 900;
const PLOT_HEIGHT = 300;

// An axis for some values: numbers in their order, words one after the other. {at(value) -> 0..1 or null, ticks}.
export function axisOf(values, log = false) {
  const known = values.filter((value) => value !== null && value !== undefined && value !== "");
  const numbers = known.map((value) => (typeof value === "number" ? value : Number(value)));
  if (known.length && numbers.every(Number.isFinite)) return numericAxis(numbers, log && numbers.every((one) => one > 0));
  const words = [...new Set(known.map(String))].sort();
  const place = (value) => (words.length === 1 ? 0.5 : words.indexOf(String(value)) / (words.length - 1));
  return { at: (value) => (words.includes(String(value)) ? place(value) : null), ticks: words.slice(0, 12).map((word) => [place(word), word]) };
}

function numericAxis(numbers, log) {
  const shape = log ? Math.log10 : (value) => value;
  const low = shape(Math.min(...numbers));
  const span = shape(Math.max(...numbers)) - low;
  const place = (value) => (span ? (shape(value) - low) / span : 0.5);
  const at = (value) => {
    const found = value === null || value === undefined || value === "" ? null : (real(value) ?? Number(value));
    return Number.isFinite(found) && !(log && found <= 0) ? place(found) : null;
  };
  const distinct = [...new Set(numbers)].sort((a, b) => a - b);
  const shown = distinct.length <= 6 ? distinct : [0, 0.25, 0.5, 0.75, 1].map((part) => (log ? 10 ** (low + part * span) : low + part * span));
  return { at, ticks: shown.map((value) => [place(value), number(value)]) };
}

// columns: [{name, values: one per run}]; runs: [{name, style}]. `onSee(index or null)` for the run under the pointer.
export function parallelCoordinates(columns, runs, onSee) {
  const axes = columns.map(({ values }) => axisOf(values));
  const x = (column) => 60 + (column * (PLOT_WIDTH - 160)) / Math.max(1, columns.length - 1);
  const y = (part) => PLOT_HEIGHT - 24 - part * (PLOT_HEIGHT - 64);
  const drawn = runs.map((run, at) => {
    const places = axes.map((axis, column) => [x(column), axis.at(columns[column].values[at])]).filter(([, part]) => part !== null);
    const path = svg("path", { class: "thread", d: places.map(([left, part], step) => `${step ? "L" : "M"}${left} ${y(part).toFixed(1)}`).join(""), stroke: run.style.stroke, "stroke-dasharray": run.style.dash.join(" ") || null },
      svg("title", {}, run.name));
    path.addEventListener("pointerenter", () => onSee(at));
    path.addEventListener("pointerleave", () => onSee(null));
    return path;
  });
  const lines = axes.map((axis, column) => [
    svg("line", { class: "axis", x1: x(column), x2: x(column), y1: y(0), y2: y(1) }),
    svg("text", { class: "axis-name", x: x(column), y: 20, "text-anchor": column ? "middle" : "start" }, columns[column].name),
    axis.ticks.map(([part, text]) => svg("text", { class: "axis-tick", x: x(column) + 6, y: y(part) + 4 }, text.length > 16 ? `${text.slice(0, 15)}\u2026` : text)),
  ]);
  return h("div", { class: "wide" }, svg("svg", { class: "parallel", viewBox: `0 0 ${PLOT_WIDTH} ${PLOT_HEIGHT}`, role: "img", "aria-label": `${runs.length} runs over ${columns.map((one) => one.name).join(", ")}` }, drawn, lines));
}

// across, up: {name, values: one per run}.
export function scatter(across, up, runs, { logX, onSee }) {
  const [ax, ay] = [axisOf(across.values, logX), axisOf(up.values)];
  const x = (part) => 70 + part * (PLOT_WIDTH - 130);
  const y = (part) => PLOT_HEIGHT - 40 - part * (PLOT_HEIGHT - 70);
  const points = runs.map((run, at) => {
    const [left, high] = [ax.at(across.values[at]), ay.at(up.values[at])];
    if (left === null || high === null) return null;
    const point = svg("circle", { class: "point", cx: x(left), cy: y(high), r: 7, fill: run.style.stroke }, svg("title", {}, `${run.name}: ${across.name} ${across.values[at]}, ${up.name} ${number(up.values[at])}`));
    point.addEventListener("pointerenter", () => onSee(at));
    point.addEventListener("pointerleave", () => onSee(null));
    return point;
  });
  return h("div", { class: "wide" }, svg("svg", { class: "parallel", viewBox: `0 0 ${PLOT_WIDTH} ${PLOT_HEIGHT}`, role: "img", "aria-label": `${up.name} against ${across.name}` },
    svg("line", { class: "axis", x1: x(0), x2: x(1), y1: y(0) + 10, y2: y(0) + 10 }), svg("line", { class: "axis", x1: x(0) - 12, x2: x(0) - 12, y1: y(0), y2: y(1) }),
    ax.ticks.map(([part, text]) => svg("text", { class: "axis-tick", x: x(part), y: y(0) + 26, "text-anchor": "middle" }, text)),
    ay.ticks.map(([part, text]) => svg("text", { class: "axis-tick", x: x(0) - 18, y: y(part) + 4, "text-anchor": "end" }, text)),
    svg("text", { class: "axis-name", x: x(1), y: y(0) - 2, "text-anchor": "end" }, across.name), svg("text", { class: "axis-name", x: x(0), y: 18 }, up.name), points));
}
