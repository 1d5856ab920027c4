// Drawings of arguments against results: a line per run over several axes, and a point per run over two.
import { h, svg } from "./dom.js";
import { number, real } from "./format.js";

const PLOT_WIDTH = 900;
const PLOT_HEIGHT = 330;
const FOOT = -0.1; // where values lie that have no place on an axis: below it
const TICKS_APART = 0.06;
const NOT_NUMBERS = { nan: "NaN", inf: "\u221e", infinity: "\u221e", "-inf": "\u2212\u221e", "-infinity": "\u2212\u221e" };

// An axis for some values: numbers in their order, words one after the other. {at(value) -> place, ticks}. What has no
// place among them (nothing, NaN, what has no logarithm) is at the foot, and a tick says what it is.
export function axisOf(values, log = false) {
  const told = values.filter((value) => !isMissing(value));
  const usual = told.filter((value) => !oddWord(value));
  const numbers = usual.map(Number);
  const axis = usual.length && numbers.every(Number.isFinite) ? numericAxis(numbers, log) : wordAxis([...new Set(told.map(String))].sort());
  const place = (value) => (isMissing(value) ? null : axis.at(value)) ?? FOOT;
  const below = [...new Set(values.filter((value) => place(value) === FOOT).map(footWord))];
  return { at: place, ticks: [...apartFrom(axis.ticks), ...(below.length ? [[FOOT, below.join(", ")]] : [])] };
}

function isMissing(value) {
  return value === null || value === undefined || value === "";
}

function oddWord(value) {
  return NOT_NUMBERS[String(value).toLowerCase().replace(/^\+/, "")];
}

function footWord(value) {
  return isMissing(value) ? "none" : oddWord(value) ?? "0 or less";
}

function wordAxis(words) {
  const place = (word) => (words.length === 1 ? 0.5 : words.indexOf(word) / (words.length - 1));
  return { at: (value) => place(String(value)), ticks: words.map((word) => [place(word), word]) };
}

function numericAxis(numbers, log) {
  const usable = log ? numbers.filter((one) => one > 0) : numbers;
  const shape = log ? Math.log10 : (value) => value;
  const low = shape(Math.min(...usable));
  const span = shape(Math.max(...usable)) - low;
  const at = (value) => {
    const found = real(value) ?? Number(value);
    if (!Number.isFinite(found) || (log && found <= 0)) return null;
    return span ? (shape(found) - low) / span : 0.5;
  };
  const distinct = [...new Set(usable)].sort((a, b) => a - b);
  const shown = distinct.length <= 6 ? distinct : [0, 0.25, 0.5, 0.75, 1].map((part) => (log ? 10 ** (low + part * span) : low + part * span));
  return { at, ticks: shown.map((value) => [at(value), number(value)]) };
}

// Those ticks whose words do not lie upon one another; the first and the last before others.
function apartFrom(ticks) {
  const kept = [];
  for (const tick of [ticks[0], ticks.at(-1), ...ticks.slice(1, -1)]) {
    if (tick && kept.every(([place]) => Math.abs(place - tick[0]) >= TICKS_APART)) kept.push(tick);
  }
  return kept;
}

// columns: [{name, values: one per run}], the last one is the result; runs: [{name, style()}].
export function parallelCoordinates(columns, runs, { log, logResult, onSee }) {
  const axes = columns.map(({ values }, column) => axisOf(values, column === columns.length - 1 ? logResult : log));
  const x = (column) => 60 + (column * (PLOT_WIDTH - 160)) / Math.max(1, columns.length - 1);
  const y = (part) => PLOT_HEIGHT - 50 - part * (PLOT_HEIGHT - 90);
  const drawn = runs.map((run, at) => {
    const { stroke, dash } = run.style();
    const path = axes.map((axis, column) => `${column ? "L" : "M"}${x(column)} ${y(axis.at(columns[column].values[at])).toFixed(1)}`).join("");
    return underPointer(svg("path", { class: "thread", d: path, stroke, "stroke-dasharray": dash.join(" ") || null }, svg("title", {}, run.name)), at, onSee);
  });
  const lines = axes.map((axis, column) => [
    svg("line", { class: "axis", x1: x(column), x2: x(column), y1: y(0), y2: y(1) }),
    svg("text", { class: "axis-name", x: x(column), y: 20, "text-anchor": column ? "middle" : "start" }, shortened(columns[column].name, 30)),
    axis.ticks.map(([part, text]) => svg("text", { class: "axis-tick", x: x(column) + 6, y: y(part) + 4 }, shortened(text, 16))),
  ]);
  return framed(`${runs.length} runs over ${columns.map((one) => one.name).join(", ")}`, [drawn, lines]);
}

// across, up: {name, values: one per run}.
export function scatter(across, up, runs, { log, logResult, onSee }) {
  const [ax, ay] = [axisOf(across.values, log), axisOf(up.values, logResult)];
  const x = (part) => 150 + part * (PLOT_WIDTH - 210);
  const y = (part) => PLOT_HEIGHT - 90 - part * (PLOT_HEIGHT - 130);
  const [left, bottom] = [x(least(ax)) - 24, y(least(ay)) + 30];
  const points = runs.map((run, at) => {
    const words = `${run.name}: ${across.name} ${across.values[at] ?? "none"}, ${up.name} ${number(up.values[at]) || "none"}`;
    const point = svg("circle", { class: "point", cx: x(ax.at(across.values[at])), cy: y(ay.at(up.values[at])), r: 7, fill: run.style().stroke }, svg("title", {}, words));
    return underPointer(point, at, onSee);
  });
  return framed(`${up.name} against ${across.name}`, [
    svg("line", { class: "axis", x1: x(0), x2: x(1), y1: y(0) + 10, y2: y(0) + 10 }), svg("line", { class: "axis", x1: x(0) - 12, x2: x(0) - 12, y1: y(0), y2: y(1) }),
    ax.ticks.map(([part, text]) => svg("text", { class: "axis-tick", x: x(part), y: bottom, "text-anchor": "middle" }, shortened(text, 12))),
    ay.ticks.map(([part, text]) => svg("text", { class: "axis-tick", x: left, y: y(part) + 4, "text-anchor": "end" }, shortened(text, 10))),
    svg("text", { class: "axis-name", x: x(0.5), y: bottom + 22, "text-anchor": "middle" }, shortened(across.name, 60)), svg("text", { class: "axis-name", x: left, y: 18 }, shortened(up.name, 60)), points]);
}

function least({ ticks }) {
  return ticks.at(-1)?.[0] === FOOT ? FOOT : 0;
}

function framed(name, contents) {
  return h("div", { class: "wide", tabindex: "0", role: "group", "aria-label": name },
    svg("svg", { class: "parallel", viewBox: `0 0 ${PLOT_WIDTH} ${PLOT_HEIGHT}`, role: "img", "aria-label": name }, contents));
}

function underPointer(element, at, onSee) {
  element.addEventListener("pointerenter", () => onSee(at));
  element.addEventListener("pointerleave", () => onSee(null));
  return element;
}

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}\u2026` : text;
}
