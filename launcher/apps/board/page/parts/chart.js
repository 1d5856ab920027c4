// One chart: curves on a canvas by uPlot, with what a person of training wants to see beside them.
import { isDark, lineStyle, themed } from "./colours.js";
import { h, oncePerFrame } from "./dom.js";
import { drawNames, NAME_HEIGHT, namesWidth, outlined } from "./line_names.js";
import { duration, number, percent, plural, real } from "./format.js";

const MARKED = { failure: "bad", agent_lost: "bad", training: "muted" }; // `training`: a generation has done its first step
const AT_FOOT = { checkpoint: "muted", validation: "muted", safe: "accent", best: "good" }; // small signs that hide nothing of a curve
const CHART_HEIGHT_REM = 15;

// Pixels of this many times the size of the page's letters, which is larger on a large screen.
function rem(many) {
  return Math.round(many * parseFloat(getComputedStyle(document.documentElement).fontSize));
}

// A curve of the server as arrays of numbers: {x, low, high, odd}; `odd` has the places of NaN and infinite values.
export function readCurve(curve) {
  const low = (curve.y ?? curve.min).map(real);
  const high = curve.y ? low : curve.max.map(real);
  const odd = new Set(curve.odd ?? []);
  low.forEach((value, at) => (Number.isFinite(value) && Number.isFinite(high[at])) || odd.add(at));
  return { x: [...curve.x], low, high, odd, exact: Boolean(curve.y), last: curve.last ? curve.last.map(real) : null };
}

// Each value drawn towards those before it: 0 leaves it, 0.99 hardly lets it move. A gap stays one.
export function smoothed(values, weight) {
  if (!weight) return values;
  let last = 0;
  let share = 0; // how much of all weight has been seen: without it, the beginning would lean to zero
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    last = last * weight + (1 - weight) * value;
    share = share * weight + (1 - weight);
    return last / share;
  });
}

// options: {by, smooth, logY, logX, range: [from, to] or null, words(value): how values are written, what: of lines};
// lines: [{name, curve, style}]; marks: [{x, kind, text}].
export function chart(title, onRange) {
  const readout = h("span", { class: "readout" });
  const plot = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label": title, on: { keydown: (event) => steer(event) } });
  const element = h("figure", { class: "chart" }, h("figcaption", {}, h("h3", { class: "cut", title }, title), readout), plot);
  let drawn = null; // the uPlot on the page
  let shown = null; // {lines, marks, options}
  let structure = "";

  const extent = () => shown.options.range ?? [drawn?.data[0][0] ?? 0, drawn?.data[0].at(-1) ?? 1];
  const steer = (event) => {
    if (!drawn || event.ctrlKey || event.metaKey) return;
    const [from, to] = extent();
    const span = to - from;
    const ranges = {
      "+": [from + span / 4, to - span / 4], "=": [from + span / 4, to - span / 4], "-": shown.options.range && [from - span / 2, to + span / 2], 0: null,
      ArrowLeft: shown.options.range && [from - span / 4, to - span / 4], ArrowRight: shown.options.range && [from + span / 4, to + span / 4],
    };
    if (!(event.key in ranges)) return;
    event.preventDefault();
    event.stopPropagation();
    onRange(ranges[event.key]);
  };

  const tell = () => {
    const { lines, options } = shown;
    const at = drawn.cursor.idx;
    const over = at !== null && at !== undefined && drawn.cursor.left >= 0;
    if (!over) return (readout.textContent = lines.length === 1 ? lastWords(lines[0].curve, options) : "");
    const x = drawn.data[0][at];
    const near = nearest(drawn, lines, at);
    const where = options.by === "step" ? `step ${number(x)}` : options.by === "since" ? duration(x) : options.by === "part" ? percent(x) : new Date(x * 1000).toLocaleString("sv");
    readout.textContent = `${where}${near ? `: ${lines.length > 1 ? `${near.name} ` : ""}${(options.words ?? number)(near.value)}` : ""}`;
  };

  const draw = () => {
    if (!shown || !plot.clientWidth) return;
    const { lines, options, marks } = shown;
    const data = joined(lines, options);
    const now = JSON.stringify([lines.map((line) => [line.name, line.style]), options.by, options.logY, options.logX, options.smooth > 0, isDark(), data[0].length > 0]);
    if (now !== structure || !drawn) {
      drawn?.destroy();
      structure = now;
      drawn = new globalThis.uPlot(plan(lines, () => shown, plot.clientWidth, { tell, onRange }), data, plot);
    } else {
      drawn.setSize({ width: plot.clientWidth, height: rem(CHART_HEIGHT_REM) });
      drawn.setData(data);
    }
    const words = lines.length === 1 ? lastWords(lines[0].curve, options) : plural(lines.length, options.what ?? "run");
    plot.setAttribute("aria-label", `${title} by ${options.by}: ${words}${marks.length ? `, ${plural(marks.length, "mark")}` : ""}. Keys: plus and minus zoom, 0 shows all.`);
    tell();
  };
  const later = oncePerFrame(draw);
  const watcher = new ResizeObserver(later);
  watcher.observe(plot);
  document.addEventListener("theme", later);
  return {
    element,
    show: (lines, marks, options) => ((shown = { lines, marks, options }), later()),
    stop: () => (watcher.disconnect(), document.removeEventListener("theme", later), drawn?.destroy(), (drawn = shown = null)),
  };
}

// The last point of a curve, in the words in which the head of the run says it.
function lastWords(curve, { by, words }) {
  if (!curve.x.length) return "";
  const [x, value] = curve.last ?? [curve.x.at(-1), curve.high.at(-1)];
  return words ? `last ${words(value)}` : by === "step" ? lastValueWords(value, x) : `last ${printed(value)}`;
}

export function lastValueWords(value, step) {
  return `last ${printed(real(value))} at step ${number(step)}`;
}

function printed(value) {
  return Number.isNaN(value) ? "NaN" : Number.isFinite(value) ? number(value) : number(value > 0 ? "inf" : "-inf");
}

// The tables of all lines over one axis. Of each line: what is drawn, and below and above it the band of what was measured.
function joined(lines, { smooth, logY, logX }) {
  const tables = lines.map(({ curve }) => {
    const usable = (value, at) => (curve.odd.has(at) || value === null || (logY && value <= 0) ? null : value);
    const low = curve.low.map(usable);
    const high = curve.high.map(usable);
    const middle = curve.exact ? low : curve.middle ? curve.middle.map(usable) : low.map((value, at) => (value === null || high[at] === null ? null : (value + high[at]) / 2));
    const table = [curve.x, smoothed(middle, smooth), low, high];
    return logX ? table.map((column) => column.filter((_, at) => curve.x[at] > 0)) : table;
  });
  return tables.length === 1 ? tables[0] : tables.length ? globalThis.uPlot.join(tables) : [[], []];
}

function plan(lines, state, width, { tell, onRange }) {
  const { by, logY, logX, smooth, words } = state().options;
  const named = lines.length > 1 && lines.length * NAME_HEIGHT < CHART_HEIGHT_REM * 14;
  const axis = { stroke: themed("muted"), grid: { stroke: themed("grid"), width: 1 }, ticks: { show: false }, font: `${rem(0.86)}px system-ui, sans-serif` };
  const series = [{}];
  const bands = [];
  for (const { style, curve } of lines) {
    series.push({ stroke: style.stroke, dash: style.dash, width: 1.75, pxAlign: 0, points: { show: curve.x.length < 2 } });
    const faint = { stroke: curve.exact ? `${style.stroke}59` : null, width: 1, points: { show: false }, show: !curve.exact || smooth > 0 };
    series.push(faint, { ...faint, stroke: null });
    if (!curve.exact) bands.push({ series: [series.length - 1, series.length - 2], fill: `${style.stroke}38` });
  }
  const span = (_, low, high) => state().options.range ?? (low === high ? [low - 0.5, high + 0.5] : [low, high]);
  return {
    width, height: rem(CHART_HEIGHT_REM), series, bands, legend: { show: false }, padding: [8, named ? namesWidth(lines, width) : 20, 0, 0],
    scales: { x: { time: by === "time", distr: logX ? 3 : 1, range: logX ? undefined : span }, y: { distr: logY ? 3 : 1 } },
    axes: [
      { ...axis, size: rem(2.1), values: (_, ticks, __, ___, apart) => ticks.map((one) => (one === null ? "" : placeWords(one, by, apart))) },
      { ...axis, size: rem(4.6), values: (_, ticks) => ticks.map((one) => (one === null ? "" : (words ?? shortNumber)(one))) },
    ],
    cursor: { sync: { key: "board" }, drag: { x: true, y: false, setScale: false }, points: { show: false }, bind: { dblclick: () => () => onRange(null) } },
    hooks: {
      setCursor: [tell],
      setSelect: [(plot) => {
        if (plot.select.width < 4) return;
        onRange([plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")]);
        plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }],
      draw: [(plot) => drawMarks(plot, state().marks), (plot) => drawOdd(plot, lines), (plot) => named && drawNames(plot, lines)],
    },
  };
}

// A place on the horizontal axis, where places are so far apart.
function placeWords(value, by, apart) {
  if (by === "step") return shortNumber(value);
  if (by === "since") return duration(value);
  if (by === "part") return percent(value);
  const when = new Date(value * 1000).toLocaleString("sv"); // `2026-01-31 14:05:59`
  return apart >= 86400 ? when.slice(5, 10) : apart >= 60 ? when.slice(11, 16) : when.slice(11);
}

// 12 000 000 on an axis is 12M.
function shortNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(4))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  return number(value);
}

function nearest(plot, lines, at) {
  let best = null;
  lines.forEach(({ name }, line) => {
    const value = near(plot.data[1 + 3 * line], at);
    if (value === null) return;
    const far = Math.abs(plot.valToPos(value, "y") - plot.cursor.top);
    if (!best || far < best.far) best = { name, value, far };
  });
  return best;
}

// The value here, or else the next one to the left: curves that were joined have places without a value.
function near(values, at) {
  for (let place = at; place >= 0 && at - place < 50; place--) if (typeof values[place] === "number") return values[place];
  return null;
}

function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  for (const mark of marks) {
    const colour = MARKED[mark.kind] ?? AT_FOOT[mark.kind];
    if (!colour || mark.x === null || mark.x === undefined) continue;
    const x = Math.round(plot.valToPos(mark.x, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    if (mark.kind in AT_FOOT) {
      drawSign(ctx, mark.kind, x, bbox.top + bbox.height, themed(colour));
      continue;
    }
    ctx.strokeStyle = ctx.fillStyle = themed(colour);
    ctx.setLineDash(colour === "bad" ? [] : [3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (colour === "bad") ctx.fillRect(x - 3 * devicePixelRatio, bbox.top, 6 * devicePixelRatio, 6 * devicePixelRatio);
  }
  ctx.restore();
}

// A stroke for a validation, a dot for a checkpoint, a diamond for one that is kept.
function drawSign(ctx, kind, x, foot, colour) {
  const size = (kind === "best" ? 5 : kind === "safe" ? 4 : 2.5) * devicePixelRatio;
  ctx.fillStyle = colour;
  ctx.beginPath();
  if (kind === "validation") ctx.rect(x - devicePixelRatio / 2, foot - 4 * devicePixelRatio, devicePixelRatio, 4 * devicePixelRatio);
  else if (kind === "checkpoint") ctx.arc(x, foot, size, 0, 2 * Math.PI);
  else [[x, foot - size], [x + size, foot], [x, foot + size], [x - size, foot]].forEach(([left, top]) => ctx.lineTo(left, top));
  ctx.fill();
}

// A triangle at the foot wherever a value was NaN or infinite.
function drawOdd(plot, lines) {
  const { ctx, bbox } = plot;
  const size = 5 * devicePixelRatio;
  const foot = bbox.top + bbox.height;
  ctx.save();
  ctx.fillStyle = themed("bad");
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  let labelled = false;
  for (const { curve } of lines) {
    for (const at of curve.odd) {
      const x = plot.valToPos(curve.x[at], "x", true);
      if (!(x >= bbox.left && x <= bbox.left + bbox.width)) continue;
      ctx.beginPath();
      ctx.moveTo(x - size, foot);
      ctx.lineTo(x + size, foot);
      ctx.lineTo(x, foot - 2 * size);
      ctx.fill();
      if (!labelled) outlined(ctx, "NaN", Math.min(x + 1.5 * size, bbox.left + bbox.width - 5 * size), foot - 3);
      labelled = true;
    }
  }
  ctx.restore();
}

// The style for the only line of a chart.
export function onlyLine() {
  return lineStyle(0);
}
