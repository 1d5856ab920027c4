// One run: how it is and what to do next, its life, and all that is known of it behind tabs.
import { toPath } from "../parts/address.js";
import { atMostEvery, button, h, prose } from "../parts/dom.js";
import { lastValueWords } from "../parts/chart.js";
import { ask, exported, follow } from "../parts/data.js";
import { ago, clockTime, duration, number, pace, plainText, plural } from "../parts/format.js";
import { stateChip } from "../parts/state.js";
import { actionsPart } from "./actions.js";
import { artifactsPart } from "./artifacts.js";
import { checkpointsPart } from "./checkpoints.js";
import { curvesPart } from "./curves.js";
import { lifePart } from "./life.js";
import { logsPart } from "./logs.js";
import { ranksPart } from "./ranks.js";
import { setupPart } from "./setup.js";
import { systemPart } from "./system.js";

const TABS = [["curves", "Curves"], ["system", "System"], ["ranks", "Nodes and ranks"], ["logs", "Logs"], ["artifacts", "Artifacts"], ["checkpoints", "Checkpoints"], ["setup", "Setup"]].filter(([key]) => !(exported && key === "artifacts")); // which are large

const LIFE_MS = 10000; // how old the strip of a run that goes on may be

export function runView(main, { say, go, parts: [id, firstTab] }) {
  const here = `#/run/${encodeURIComponent(id)}`;
  const path = `/api/runs/${encodeURIComponent(id)}`;
  const headPlace = h("header", { class: "run-head" });
  const lifePlace = h("div");
  const panel = h("div", { role: "tabpanel", id: "panel", class: "panel" });
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "parts of the run" });
  const made = {}; // tab -> its part
  let tab = TABS.some(([key]) => key === firstTab) ? firstTab : "curves";
  let run = null; // {head, sheet}
  let marks = [];
  let gone = false;
  let shown = false; // one of the tabs
  let met = false; // from the first head on all that happens is told
  let lifeRead = 0; // when the strip was asked for, in milliseconds

  const onLog = (mark, brings = true) => (openTab("logs"), made.logs.jump(mark.at, mark.rank, mark.line, brings));
  const onRank = (rank) => (openTab("logs"), made.logs.jump(run.head.row.ended ? run.head.row.ended_at ?? Date.now() / 1000 : Date.now() / 1000, rank));
  const onRole = (role) => (openTab("logs"), made.logs.showRole(role));
  const hasEnded = () => Boolean(run?.head.row.ended);
  const roles = () => (exported ? [] : (run?.head.roles ?? []).map((role) => role.name));
  const makers = {
    curves: () => curvesPart(id, { say, marks, roles: roles(), ended: hasEnded }),
    system: () => systemPart(id, { say, ended: hasEnded }),
    ranks: () => ranksPart(onRank, onRole),
    logs: () => logsPart(id, { say, roles: roles() }),
    artifacts: () => artifactsPart(id, { say }),
    checkpoints: () => checkpointsPart(id, { say, ended: hasEnded }),
    setup: () => ({ element: setupPart(id, run.sheet, { say }) }),
  };
  const openTab = (name, focus = false) => {
    tab = name;
    if (location.hash.startsWith(here)) toPath(name === "curves" ? here : `${here}/${name}`); // else one is leaving: the view that comes has not been told yet
    made[name] ??= makers[name]();
    main.classList.toggle("filled", name === "logs"); // the log takes the room that is left, so that the page need not scroll
    if (name === "ranks") made.ranks.show(run.head);
    panel.replaceChildren(h("h2", { class: "unseen" }, TABS.find(([key]) => key === name)[1]), made[name].element);
    panel.setAttribute("aria-labelledby", `tab-${name}`);
    tabs.replaceChildren(...TABS.map(([key, title]) => button(title, () => openTab(key, true),
      { role: "tab", id: `tab-${key}`, "aria-controls": "panel", "aria-selected": String(key === name), tabindex: key === name ? "0" : "-1" })));
    if (focus) tabs.querySelector("[aria-selected=true]").focus();
  };
  const beside = (way) => {
    const at = TABS.findIndex(([key]) => key === tab);
    openTab(TABS[(at + way + TABS.length) % TABS.length][0], tabs.contains(document.activeElement));
  };
  const showHead = () => {
    document.title = `${run.head.row.state} \u00b7 ${run.head.row.called || id}`;
    headPlace.replaceChildren(...headParts(run.head, { say, onLog }, headPlace.querySelector(".failure")?.open));
  };
  const loadLife = async () => {
    lifeRead = Date.now();
    try {
      const life = await ask(`${path}/life`);
      if (gone) return;
      marks = life.marks;
      const opened = [...lifePlace.querySelectorAll("details[open]")].map((one) => one.dataset.part);
      lifePlace.replaceChildren(lifePart(life, onLog));
      for (const one of lifePlace.querySelectorAll("details")) one.open = opened.includes(one.dataset.part);
      made.curves?.mark(marks);
    } catch {
      lifePlace.replaceChildren(); // a run that has not begun has no life yet
    }
  };
  const loadLifeSoon = atMostEvery(300, loadLife);
  const load = async () => {
    if (tab === "curves") made.curves ??= makers.curves(); // they are on their way while the rest is asked for
    try {
      run = await ask(path);
      if (gone) return;
      showHead();
      made.curves?.ended();
      made.curves?.offer(roles());
      if (!panel.firstChild) main.replaceChildren(headPlace, lifePlace, tabs, panel);
      const { failure, row } = run.head;
      if (!firstTab && !shown && row.state === "failed" && failure?.at) onLog({ ...failure, line: failure.tail.at(-1) }, false);
      else openTab(tab);
      shown = true;
      await loadLife();
    } catch (error) {
      if (!run) main.replaceChildren(h("p", { class: "empty" }, error.message, " ", h("a", { href: "#/runs" }, "all runs")));
      else say(error.message);
    }
  };
  load();
  let lost = false;
  const stop = follow(id, {
    head: (head) => {
      const [before, begins] = [run, !met];
      met = true;
      if (!before) return;
      const [ended, saved] = [head.row.ended !== run.head.row.ended, head.checkpoint !== run.head.checkpoint];
      run.head = head;
      showHead();
      if (tab === "ranks") made.ranks.show(head);
      made.curves?.offer(roles());
      for (const part of [made.system, made.curves, made.logs]) part?.renew();
      if (saved) made.checkpoints?.load();
      if (ended) made.curves?.ended(), made.checkpoints?.load();
      if (begins) made.curves?.rewind();
      if (begins || ended || Date.now() - lifeRead > LIFE_MS) loadLifeSoon(); // the strip grows with time too
    },
    points: (points) => made.curves?.add(points),
    rewind: () => made.curves?.rewind(),
    log: (told) => made.logs?.add(told),
    mark: () => loadLifeSoon(),
    connected: (now) => {
      if (now && lost) restart();
      lost = !now;
      main.classList.toggle("cut-off", lost);
    },
  });
  // After a break all is asked for anew: what changed in between was told to nobody.
  const restart = () => {
    met = false;
    for (const [name, part] of Object.entries(made)) part.stop?.(), delete made[name];
    load();
  };
  return {
    stop: () => ((gone = true), stop(), Object.values(made).forEach((part) => part.stop?.())),
    keys: { Escape: () => go("#/runs"), ArrowLeft: () => run && beside(-1), ArrowRight: () => run && beside(1), "/": () => run && searchLog() },
  };

  function searchLog() {
    openTab("logs");
    document.getElementById("search").focus();
  }
}

function headParts(head, { say, onLog }, isOpen = head.row.state === "failed") {
  const { row } = head;
  const numbers = [
    ["step", row.step === null ? "" : number(row.step) + (row.total ? ` / ${number(row.total)}` : "")], ["rate", pace(row.rate)], ["to go", duration(row.eta_s)],
    lossPart(head), ["restarts", head.restarts.total ? restartWords(head.restarts) : ""], ["checkpoint", head.checkpoint_words],
    ["ran for", row.started_at ? duration((row.ended_at ?? Date.now() / 1000) - row.started_at) : ""], ["submitted", ago(row.submitted_at)],
    ["on", [row.cluster, row.nodes > 1 ? plural(row.nodes, "node") : "", row.world_size ? plural(row.world_size, "rank") : ""].filter(Boolean).join(", ")],
  ];
  return [
    h("div", { class: "title" }, h("h1", { class: "cut", title: row.id }, row.called || row.id), stateChip(row.state),
      (row.tags ?? []).map((tag) => h("span", { class: "tag" }, tag)), h("span", { class: "grow" }), actionsPart(row, { say })),
    row.called && row.called !== row.id ? h("p", { class: "second" }, row.id) : null,
    head.words ? h("p", { class: `words words-${row.state}` }, prose(plainText(head.words)), head.cause_text ? h("span", { class: "second" }, " ", prose(head.cause_text)) : null) : null,
    row.as_of ? h("p", { class: "note" }, `The cluster is silent: this was last known at ${clockTime(row.as_of)}.`) : null,
    Object.entries(head.not_finite ?? {}).map(([name, one]) => h("p", { class: "note wrong" }, `${name} is ${one.value} since step ${number(one.since)}`)),
    head.failure ? failurePart(head.failure, onLog, isOpen) : null,
    nextPart(head, say),
    row.note ? h("p", { class: "note" }, row.note) : null,
    h("dl", { class: "numbers" }, numbers.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
  ].flat().filter(Boolean);
}

// What to do next: a command has a frame and can be copied, what only a person can do has neither.
function nextPart({ next, next_command }, say) {
  if (!next) return null;
  const words = next_command ? next.slice(0, next.length - next_command.length) : next;
  return h("p", { class: "next" }, "next: ", prose(words), next_command ? [h("code", {}, next_command), copyButton(next_command, say)] : null);
}

// The loss as the end of its curve has it; before that was read, what its ranks told last.
function lossPart({ last, row }) {
  return last ? [last.name, lastValueWords(last.value, last.step)] : ["loss", number(row.metrics?.loss ?? null)];
}

function restartWords({ total, by_cause }) {
  const causes = Object.entries(by_cause).map(([cause, many]) => `${many} ${cause.replaceAll("_", " ")}`);
  return `${total} (${causes.join(", ")})`;
}

function failurePart(failure, onLog, open) {
  const where = [failure.rank === null ? "" : `rank ${failure.rank}`, failure.where].filter(Boolean).join(", ");
  return h("details", { class: "events failure", open }, h("summary", {}, `last failure: ${failure.cause.replaceAll("_", " ")}${where ? `, ${where}` : ""}`),
    h("p", {}, prose(plainText(failure.summary)), " ", failure.at ? button("show in the log", () => onLog({ at: failure.at, rank: failure.rank, line: failure.tail.at(-1) }), { class: "small" }) : null),
    failure.tail.length ? h("pre", { tabindex: "0", role: "group", "aria-label": "end of the log" }, plainText(failure.tail.join("\n"))) : null);
}

function copyButton(text, say) {
  return button("copy", () => navigator.clipboard?.writeText(text).then(() => say("copied"), () => say("the browser does not let pages copy here")), { class: "small" });
}
