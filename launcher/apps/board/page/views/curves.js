// The curves of one run: all that was measured, live.
import { chart, onlyLine, readCurve } from "../parts/chart.js";
import { chartBar } from "../parts/chart_bar.js";
import { inAddress, putInAddress } from "../parts/address.js";
import { afterPause, atMostEvery, button, h, oncePerFrame, prose, roleChoice } from "../parts/dom.js";
import { ask } from "../parts/data.js";
import { real } from "../parts/format.js";

const AT_FIRST = 12; // charts that are shown without being asked for; so many curves the server gives where none is named
const MOST_APPENDED = 300; // points that are put behind a curve before it is asked for anew

export function curvesPart(id, { say, marks, roles, ended }) {
  const charts = new Map(); // name -> {made, curve}
  const grid = h("div", { class: "charts" });
  const filter = h("input", { type: "search", placeholder: "metrics", "aria-label": "filter metrics", value: inAddress("metrics") ?? "", on: { input: afterPause(150, () => (putInAddress("metrics", filter.value), arrange())) } });
  const more = button("", () => (all = true, arrange()), { class: "more" });
  const none = h("p", { class: "empty" });
  const bar = chartBar([["step", "by step"], ["time", "by time"]], (newRange) => (newRange ? load() : draw()));
  const glimpsed = h("p", { class: "second", role: "status", hidden: true }, "Drawn from some of the points: all of them are being read.");
  const role = h("span");
  const chosen = () => role.firstChild?.value ?? "";
  const other = () => {
    [met, known] = [false, []];
    load();
  };
  bar.element.prepend(role, filter);
  const element = h("section", { "aria-label": "curves" }, bar.element, glimpsed, grid, more, none);
  let all = false;
  let known = []; // names
  let met = false; // the server has said which there are
  let late = false; // something was told before that
  let appended = 0;
  let asking = null;
  let noted = marks;

  const wanted = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = known.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
    return { found, shown: all || words.length ? found : found.slice(0, AT_FIRST) };
  };
  const arrange = () => (place(), load());
  const offer = (roles) => {
    const names = [...(role.firstChild?.options ?? [])].slice(1).map((one) => one.value);
    if (roles.join() === names.join()) return;
    const before = chosen();
    role.replaceChildren(roleChoice(roles, other));
    role.firstChild.value = before;
  };
  const place = () => {
    const { found, shown } = wanted();
    for (const [name, one] of charts) {
      if (shown.includes(name)) continue;
      one.made.stop();
      charts.delete(name);
    }
    for (const name of shown) if (!charts.has(name)) charts.set(name, { made: chart(name, bar.setRange), curve: null });
    grid.replaceChildren(...shown.map((name) => charts.get(name).made.element));
    more.hidden = found.length === shown.length;
    more.textContent = `${found.length - shown.length} more`;
    none.hidden = !met || known.length > 0;
    none.replaceChildren(...prose(noneWords(ended())));
    bar.element.hidden = known.length === 0 && (role.firstChild?.hidden ?? true);
  };

  const load = async () => {
    asking?.abort();
    asking = new AbortController();
    const { by, range } = bar.options();
    if (met && !charts.size) return;
    try {
      const px = Math.round(Math.min(2000, (grid.firstChild?.clientWidth || 600) * Math.min(2, devicePixelRatio)));
      const answer = await ask(`/api/runs/${encodeURIComponent(id)}/curves`,
        { ...(chosen() ? { role: chosen() } : {}), names: met ? [...charts.keys()].join(",") : "", by, px, from: range?.[0], to: range?.[1], glimpse: met ? null : 1 }, asking.signal);
      appended = 0;
      if (!met || chosen()) meet(answer.names);
      glimpsed.hidden = !answer.glimpse;
      for (const [name, one] of charts) if (answer.curves[name]) one.curve = readCurve(answer.curves[name]);
      draw();
      if (answer.glimpse) load();
    } catch (error) {
      if (error.name !== "AbortError") say(error.message);
    }
  };
  const loadSoon = atMostEvery(1000, () => load());
  const renew = () => {
    if (!chosen()) return; // what is new comes of the run's own role alone
    met &&= charts.size > 0;
    loadSoon();
  };
  const anew = () => (met ? loadSoon() : (late = true));
  const meet = (names) => {
    [met, known] = [true, names];
    place();
    if (late) loadSoon();
  };

  const draw = oncePerFrame(() => {
    const options = bar.options();
    const shownMarks = (chosen() ? [] : noted).map((mark) => ({ ...mark, x: options.by === "step" ? mark.step : mark.at }));
    for (const { made, curve } of charts.values()) {
      if (curve) made.show([{ name: "", curve, style: onlyLine() }], shownMarks, { ...options });
    }
  });

  const add = (points) => {
    if (chosen()) return;
    if (!met) return anew();
    const fresh = Object.keys(points).filter((name) => !known.includes(name));
    if (fresh.length) return (known = [...known, ...fresh]), arrange();
    const { by, range } = bar.options();
    for (const [name, told] of Object.entries(points)) {
      const curve = charts.get(name)?.curve;
      if (!curve || range) continue;
      const places = by === "step" ? told.x : told.at;
      if (places.some((x, at) => x === null || x <= (at ? places[at - 1] : curve.x.at(-1) ?? -Infinity))) return loadSoon();
      places.forEach((x, at) => append(curve, x, real(told.y[at])));
      appended += places.length;
    }
    if (appended > MOST_APPENDED * charts.size) loadSoon();
    else draw();
  };

  offer(roles);
  arrange();
  return {
    element, add, offer, renew, rewind: anew, ended: place,
    mark: (all_marks) => ((noted = all_marks), draw()),
    stop: () => (asking?.abort(), charts.forEach((one) => one.made.stop())),
  };
}

export function noneWords(ended) {
  const how = "what a `Trainer` measures, or a script reports to `LAUNCH_PROGRESS`, appears here";
  return ended ? `The run ended without a measured value: ${how}.` : `Nothing measured yet: ${how}.`;
}

function append(curve, x, value) {
  if (!Number.isFinite(value)) curve.odd.add(curve.x.length);
  curve.x.push(x);
  curve.low.push(value);
  if (curve.high !== curve.low) curve.high.push(value);
  curve.last = [x, value];
}
