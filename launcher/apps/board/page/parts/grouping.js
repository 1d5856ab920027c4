// Several curves as one: their mean, between the least and the most of them.
const PLACES = 300;

// Values of a curve at these places; null outside of it. Between two points it is a straight line.
function sampled({ x, low, high, odd }, places) {
  const points = x.map((place, at) => [place, (low[at] + high[at]) / 2]).filter(([, value], at) => !odd.has(at) && Number.isFinite(value));
  let next = 0;
  return places.map((place) => {
    while (next < points.length && points[next][0] < place) next += 1;
    if (next === points.length || (next === 0 && points[0][0] > place)) return null;
    const [[left, from], [right, to]] = [points[Math.max(0, next - 1)], points[next]];
    return right === left ? to : from + ((to - from) * (place - left)) / (right - left);
  });
}

// The curve of a group: {x, low, high, middle}; of one curve it is that curve.
export function meanCurve(curves) {
  const whole = curves.filter(({ x }) => x.length);
  if (whole.length < 2) return whole[0];
  const [first, last] = [Math.min(...whole.map(({ x }) => x[0])), Math.max(...whole.map(({ x }) => x.at(-1)))];
  const known = [...new Set(whole.flatMap(({ x }) => x))].sort((a, b) => a - b);
  const places = known.length <= PLACES ? known : Array.from({ length: PLACES }, (_, at) => first + ((last - first) * at) / (PLACES - 1));
  const tables = whole.map((curve) => sampled(curve, places));
  const rows = places.map((place, at) => [place, tables.map((table) => table[at]).filter((value) => value !== null)]).filter(([, values]) => values.length);
  return {
    x: rows.map(([place]) => place), low: rows.map(([, values]) => Math.min(...values)), high: rows.map(([, values]) => Math.max(...values)),
    middle: rows.map(([, values]) => values.reduce((sum, value) => sum + value, 0) / values.length), odd: new Set(), exact: false, last: null,
  };
}

// Runs by what they have in common: [{name, runs}], in the order in which they come. `by`: "sweep", "tag" or `arg NAME`.
export function groupedRuns(runs, by) {
  const groups = new Map();
  for (const run of runs) {
    const row = run.row ?? {};
    const word = by === "sweep" ? row.group?.id : by === "tag" ? (row.tags ?? []).join(" ") : row.args?.[by.slice(4)];
    const name = word ? (by.startsWith("arg ") ? `${by.slice(4)} ${word}` : word) : "others";
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(run);
  }
  return [...groups].map(([name, members]) => ({ name, runs: members }));
}
