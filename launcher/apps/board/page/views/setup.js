// With what a run was made: command, spec, what was overridden, code, environment, versions.
import { button, h } from "../parts/dom.js";
import { ask, exported } from "../parts/data.js";
import { plainText, plural } from "../parts/format.js";

export function setupPart(id, sheet, { say }) {
  const facts = [
    ["command", h("code", {}, sheet.command.join(" "))],
    ["overridden", sheet.overrides.length ? sheet.overrides.map((one) => h("code", { class: "block" }, one)) : "nothing"],
    ["project", sheet.project],
    ["commit", sheet.commit ? [h("code", {}, sheet.commit.slice(0, 12)), sheet.dirty ? " and changes that were not committed" : ""] : "none"],
  ];
  return h("section", { class: "setup", "aria-label": "setup" },
    h("dl", { class: "facts" }, facts.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("h2", {}, "Spec"), h("pre", { tabindex: "0", role: "group", "aria-label": "spec" }, plainText(sheet.spec)),
    h("h2", {}, "Environment"), sheet.environments.length ? sheet.environments.map(environment) : h("p", { class: "empty" }, "Not noted yet."),
    exported ? null : [h("h2", {}, "Code"), codePart(id, { say })]);
}

function environment(one) {
  const facts = [["host", one.host], ["system", one.system], ["Python", `${one.version} (${one.python})`], ["CPUs", one.cpus], ["GPUs", (one.gpus ?? []).join(", ")], ["driver", one.driver]];
  const packages = Object.entries(one.packages ?? {}).sort(([a], [b]) => (a < b ? -1 : 1));
  return [
    h("dl", { class: "facts" }, facts.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))])),
    h("details", { class: "events" }, h("summary", {}, plural(packages.length, "package")),
      h("ul", { class: "packages" }, packages.map(([name, version]) => h("li", {}, name, " ", h("b", {}, version))))),
  ];
}

// What of its code was not committed, and what is other in the code of another run.
function codePart(id, { say }) {
  const place = h("div");
  const other = h("input", { type: "text", list: "other-runs", placeholder: "id of another run", "aria-label": "compare the code with run" });
  const known = h("datalist", { id: "other-runs" });
  const compare = async (other) => {
    try {
      const told = await ask(`/api/runs/${encodeURIComponent(id)}/code`, { with: other });
      place.replaceChildren(...(told.unknown ? [h("p", { class: "note" }, told.unknown)] : []),
        ...(told.changes.length ? told.changes.map(change) : [h("p", { class: "note" }, told.unknown ? "" : other ? "The code is equal." : "All of it was committed.")]));
    } catch (error) {
      say(error.message);
    }
  };
  ask("/api/runs").then(({ runs }) => known.append(...runs.filter((row) => row.id !== id).slice(0, 200).map((row) => h("option", { value: row.id }))), () => {});
  const named = () => other.value.trim() && compare(other.value.trim());
  other.addEventListener("keydown", (event) => event.key === "Enter" && named());
  return h("div", {}, h("div", { class: "bar" }, button("show what was not committed", () => compare("")), other, known, button("show what is other", named)), place);
}

function change({ path, kind, diff }) {
  const lines = diff.map((line) => h("span", { class: line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : line.startsWith("@") ? "where" : null }, plainText(line), "\n"));
  return h("details", { class: "events", open: true }, h("summary", {}, `${path} (${kind})`), h("pre", { class: "diff", tabindex: "0", role: "group", "aria-label": `changes of ${path}` }, lines));
}
