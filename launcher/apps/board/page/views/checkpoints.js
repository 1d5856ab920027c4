// What the run has saved: sizes, values, the best one.
import { h, prose } from "../parts/dom.js";
import { ask } from "../parts/data.js";
import { bytes, clockTime, number, plural } from "../parts/format.js";

export function checkpointsPart(id, { say, ended }) {
  const element = h("section", { "aria-label": "checkpoints" }, h("p", { class: "empty" }, "Looking\u2026"));
  const load = async () => {
    try {
      element.replaceChildren(...contents(await ask(`/api/runs/${encodeURIComponent(id)}/checkpoints`), ended()));
    } catch (error) {
      say(error.message);
    }
  };
  load();
  return { element, load };
}

function contents({ checkpoints, error, by_script }, ended) {
  const told = error ? [h("p", { class: "note" }, prose(error))] : [];
  if (!checkpoints.length) return [...told, h("p", { class: "empty" }, noCheckpointWords(by_script, ended))];
  const names = [...new Set(checkpoints.flatMap((one) => Object.keys(one.info ?? {})))];
  const titles = [["step", true], ["kind"], ["state"], ["saved"], ["size", true], ["ranks", true], ["attempt", true], ...names.map((name) => [name, true])];
  const row = (one) => h("tr", { class: one.kind === "best" ? "best" : null },
    h("th", { scope: "row", class: "numeric" }, number(one.step)),
    h("td", {}, one.kind === "best" ? h("b", {}, "\u2605 best") : one.kind), h("td", { class: one.state === "ok" ? null : "wrong" }, one.state.replaceAll("_", " "), one.reason ? `: ${one.reason}` : "", one.finite === false ? ", not finite" : ""),
    h("td", {}, clockTime(one.saved_at)),
    [bytes(one.size_bytes), one.world_size, one.attempt, ...names.map((name) => value(one.info?.[name]))].map((cell) => h("td", { class: "numeric" }, String(cell ?? ""))));
  const total = checkpoints.reduce((sum, one) => sum + (one.size_bytes ?? 0), 0);
  return [...told, h("p", { class: "note" }, `${plural(checkpoints.length, "checkpoint")}, ${bytes(total)}`),
    h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, titles.map(([title, numeric]) => h("th", { scope: "col", class: numeric ? "numeric" : null }, title)))),
      h("tbody", {}, checkpoints.map(row))))];
}

export function noCheckpointWords(byScript, ended) {
  if (byScript) return `The newest: ${byScript}. It is not listed or checked here; a resumed run loads it as its script does.`;
  return ended ? "The run saved no checkpoint." : "No checkpoint yet.";
}

function value(told) {
  return typeof told === "object" && told !== null ? JSON.stringify(told) : number(told);
}
