// A curve as small as a word.
import { svg } from "./dom.js";
import { real } from "./format.js";

const SPARK_WIDTH = 96;
const SPARK_HEIGHT = 22;

// The shape of some values; a place that is no finite number is a gap with a dot below it.
export function spark(values, name) {
  const numbers = (values ?? []).map(real);
  const finite = numbers.filter(Number.isFinite);
  if (!finite.length) return null;
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  const x = (at) => 2 + (at * (SPARK_WIDTH - 4)) / Math.max(1, numbers.length - 1);
  const y = (value) => SPARK_HEIGHT - 3 - ((value - low) / span) * (SPARK_HEIGHT - 6);
  let path = "";
  let pen = "M";
  const dots = [];
  numbers.forEach((value, at) => {
    if (Number.isFinite(value)) {
      path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    } else {
      pen = "M";
      dots.push(svg("circle", { class: "bad", cx: x(at).toFixed(1), cy: SPARK_HEIGHT - 2, r: 1.5 }));
    }
  });
  return svg("svg", { class: "spark", viewBox: `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`, width: SPARK_WIDTH, height: SPARK_HEIGHT, role: "img", "aria-label": name },
    svg("path", { d: path }), dots);
}
