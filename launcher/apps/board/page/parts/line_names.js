// Names of curves at their ends.
import { themed } from "./colours.js";

export const NAME_HEIGHT = 13; // pixels

// How much room the names of the lines have beside the curves: as much as they need, but not more than a third.
export function namesWidth(lines, width) {
  return Math.ceil(Math.min(width / 3, 14 + 7 * Math.max(...lines.map(({ name }) => name.length))));
}

// The name of each line behind its last point, one below the other where they would lie upon each other.
export function drawNames(plot, lines) {
  const { ctx, bbox } = plot;
  const step = NAME_HEIGHT * devicePixelRatio;
  const right = bbox.left + bbox.width;
  const [from, to] = [plot.scales.x.min, plot.scales.x.max];
  const ends = lines.flatMap(({ name, style }, line) => {
    const values = plot.data[1 + 3 * line];
    const at = values.findLastIndex((value, place) => typeof value === "number" && plot.data[0][place] >= from && plot.data[0][place] <= to);
    if (at < 0) return [];
    const y = Math.max(bbox.top + step / 2, Math.min(bbox.top + bbox.height - step / 2, plot.valToPos(values[at], "y", true)));
    return [{ name, stroke: style.stroke, y, x: Math.min(right, plot.valToPos(plot.data[0][at], "x", true)) }];
  }).sort((a, b) => a.y - b.y);
  ends.forEach((end, at) => (end.y = Math.max(end.y, at ? ends[at - 1].y + step : 0)));
  ends.reduceRight((below, end) => (end.y = Math.min(end.y, below - step)), bbox.top + bbox.height + step / 2);
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  for (const { name, stroke, x, y } of ends) {
    let shown = name;
    const room = ctx.canvas.width - x - 8 * devicePixelRatio;
    while (shown.length > 2 && ctx.measureText(shown).width > room) shown = `${shown.slice(0, -2)}\u2026`;
    outlined(ctx, shown, x + 5 * devicePixelRatio, y + 4 * devicePixelRatio, stroke);
  }
  ctx.restore();
}

// Words that can be read over a curve.
export function outlined(ctx, words, x, y, colour = ctx.fillStyle) {
  ctx.strokeStyle = themed("surface");
  ctx.lineWidth = 4 * devicePixelRatio;
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  ctx.strokeText(words, x, y);
  ctx.fillStyle = colour;
  ctx.fillText(words, x, y);
}
