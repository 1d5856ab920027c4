// The strip of a run's life: where its time went, what happened when, and how much of it was of use.
import { button, h, prose } from "../parts/dom.js";
import { clockTime, duration, number, percent, plural, spread } from "../parts/format.js";

const KINDS = ["training", "running", "starting", "recovering", "waiting", "lost", "idle"];
const GRAVE = new Set(["failure", "agent_lost", "agent_fault", "node_unfit", "coordinator_stalled", "disk"]); // what else happens is a small tick
const SAVED = { checkpoint: "\u2022", safe: "\u25c6", best: "\u2605", validation: "\u2502" }; // what went well has a row of its own, with these signs
const MOST_VALIDATIONS = 60; // on the strip: more cannot be told apart on a telephone
const MOST_MARKS = 400; // of the small ones; more than that are a grey wall

// `onLog(mark)` jumps to the lines about a mark.
export function lifePart(life, onLog) {
  const from = life.from;
  const span = Math.max(1e-9, life.to - from);
  const place = (at) => `${(100 * Math.min(1, Math.max(0, (at - from) / span))).toFixed(3)}%`;
  const segments = life.segments.map((segment) => {
    const words = `${segment.kind}${segment.text ? `: ${segment.text}` : ""}, ${duration(segment.to - segment.from)}, from ${clockTime(segment.from)}, ${numbered(segment)}`;
    const element = h("div", { class: `segment kind-${segment.kind}`, title: words });
    element.style.left = place(segment.from);
    element.style.width = `${(100 * (segment.to - segment.from)) / span}%`;
    return element;
  });
  const [saved, happened] = [life.marks.filter((mark) => mark.kind in SAVED), life.marks.filter((mark) => !(mark.kind in SAVED))];
  const small = spread(happened.filter((mark) => !GRAVE.has(mark.kind)), MOST_MARKS);
  const big = happened.filter((mark) => GRAVE.has(mark.kind));
  const ticks = [...small, ...big].map((mark) => {
    const element = GRAVE.has(mark.kind)
      ? button("", () => onLog(mark), { class: `mark mark-${mark.kind}${mark.cause === "preempted" ? " mark-preemption" : ""}`, title: markWords(mark), "aria-label": `${markWords(mark)}: to the log` })
      : h("div", { class: `tick mark-${mark.kind}`, title: markWords(mark) });
    element.style.left = place(mark.at);
    return element;
  });
  const signs = shownOnStrip(saved).map((mark) => {
    const element = h("span", { class: `sign sign-${mark.kind}`, title: markWords(mark), "aria-hidden": "true" }, SAVED[mark.kind]);
    element.style.left = place(mark.at);
    return element;
  });
  const bar = h("div", { class: "strip" }, h("div", { class: "marks" }, ticks),
    h("div", { class: "segments", role: "img", "aria-label": `where the time went: ${spentWords(life)}` }, segments),
    signs.length ? h("div", { class: "signs" }, signs) : null,
    h("div", { class: "ends" }, h("time", {}, clockTime(from)), h("time", {}, clockTime(life.to))));
  return h("section", { class: "life", "aria-label": "life of the run" },
    h("div", { class: "goodput", title: "time in steps that counted, as a share of the run's time without the queue before a start that a person asked for and the time after an end" },
      h("strong", {}, life.goodput === null ? "\u2013" : percent(life.goodput)), h("span", {}, "goodput"), h("span", { class: "of" }, goodputWords(life))),
    h("div", { class: "grow" }, bar, legend(life, saved),
      events("events", happened, onLog), events("checkpoints and validations", saved, onLog, savedWords(saved))));
}

// What was saved, and some of the validations, all over the strip.
export function shownOnStrip(saved) {
  const some = new Set(spread(saved.filter((mark) => mark.kind === "validation"), MOST_VALIDATIONS));
  return spread(saved.filter((mark) => mark.kind !== "validation" || some.has(mark)), MOST_MARKS);
}

// The server tells of so many validations; of a run that had more, of some.
export function savedWords(saved, most = 200) {
  const validations = saved.filter((mark) => mark.kind === "validation").length;
  const words = validations >= most ? `${validations} of its validations` : plural(validations, "validation");
  return [saved.length > validations ? plural(saved.length - validations, "checkpoint") : "", validations ? words : ""].filter(Boolean).join(" and ");
}

function legend(life, saved) {
  return h("ul", { class: "legend" }, KINDS.filter((kind) => life.seconds[kind] >= 0.05).map((kind) =>
    h("li", {}, h("span", { class: `swatch kind-${kind}` }), `${kind} `, h("b", {}, duration(life.seconds[kind])))),
    Object.entries(SAVED).filter(([kind]) => saved.some((mark) => mark.kind === kind)).map(([kind, sign]) =>
      h("li", {}, h("span", { class: `sign-${kind}`, "aria-hidden": "true" }, `${sign} `), kind)));
}

// What goodput is a share of: the time of the strip but for a queue that a person asked for, and after an end.
export function goodputWords({ goodput, counted_s, seconds }) {
  if (goodput === null) return "";
  const left = Object.values(seconds).reduce((sum, one) => sum + one, 0) - counted_s;
  return `${duration(seconds.training)} of ${duration(counted_s)}${left >= 0.05 ? `, without ${duration(left)} waiting or idle` : ""}`;
}

function spentWords(life) {
  return KINDS.filter((kind) => life.seconds[kind] > 0).map((kind) => `${kind} ${duration(life.seconds[kind])}`).join(", ");
}

// All that happened, in words: what the strip shows, for those who read rather than see.
function events(title, marks, onLog, words = `${marks.length} ${marks.length === 1 ? title.slice(0, -1) : title}`) {
  if (!marks.length) return null;
  const rows = marks.slice(-MOST_MARKS).reverse().map((mark) => h("tr", {},
    h("td", {}, h("time", {}, clockTime(mark.at))), h("td", {}, h("span", { class: `mark-word mark-${mark.kind}` }, mark.kind.replaceAll("_", " "))),
    h("td", { class: "numeric" }, number(mark.step)), h("td", {}, prose(mark.text || (mark.cause ?? ""))),
    h("td", {}, button("log", () => onLog(mark), { class: "small", "aria-label": `log at ${clockTime(mark.at)}` }))));
  return h("details", { class: "events", "data-part": title }, h("summary", {}, `${words}${marks.length > MOST_MARKS ? `, the newest ${MOST_MARKS} of them` : ""}`),
    h("div", { class: "wide", tabindex: "0", role: "group", "aria-label": title }, h("table", {}, h("thead", {}, h("tr", {}, ["when", "what", "step", "words", ""].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, rows))));
}

function numbered(one) {
  return `attempt ${one.attempt}, generation ${one.generation}`;
}

function markWords(mark) {
  const parts = [mark.kind.replaceAll("_", " "), mark.text || mark.cause, mark.step === null || mark.step === undefined ? null : `step ${number(mark.step)}`, clockTime(mark.at)];
  return parts.filter(Boolean).join(", ");
}
