// Machines: what is free, who has what, who waits and why. Each answer with its age.
import { h, prose } from "../parts/dom.js";
import { ask, follow } from "../parts/data.js";
import { ago, duration, plural } from "../parts/format.js";

const AGAIN_MS = 10000; // the machines' answers have no stream of their own: the server asks them, and this is the reading of its notes

export function clustersView(main, { say }) {
  const place = h("div", { class: "clusters" }, h("p", { class: "empty" }, "Asking\u2026"));
  main.replaceChildren(h("h1", { class: "unseen" }, "Clusters"), place);
  let gone = false;
  const load = async () => {
    try {
      const { clusters, at, error } = await ask("/api/clusters");
      if (gone) return;
      place.replaceChildren(...(error ? [h("p", { class: "note wrong" }, prose(error))] : []), ...clusters.map((one) => clusterCard(one, at)),
        h("p", { class: "note" }, prose("A pool that only a spec names is here while a run is on it; one of the clusters file always is: `launch help ssh`.")));
    } catch (error) {
      if (gone) return;
      if (place.querySelector(".cluster")) say(error.message);
      else place.replaceChildren(h("p", { class: "empty" }, prose(error.message)));
    }
  };
  load();
  const timer = setInterval(() => document.hidden || load(), AGAIN_MS);
  const stop = follow("", { runs: () => {}, connected: (now) => main.classList.toggle("cut-off", !now) });
  return { stop: () => ((gone = true), clearInterval(timer), stop()) };
}

function clusterCard(cluster, at) {
  const { hosts, free_hosts, gpus, free_gpus } = cluster.sums;
  const age = [cluster.at === null ? "" : ago(cluster.at, at), cluster.asking ? "asking" : ""].filter(Boolean);
  const more = hosts - cluster.hosts.length;
  return h("article", { class: "cluster" },
    h("h2", {}, cluster.name, h("span", { class: "second" }, ` ${[cluster.kind, ...age].join(", ")}`)),
    cluster.error ? h("p", { class: "note wrong" }, prose(cluster.error)) : null,
    hosts ? h("p", { class: "sum" }, gpus || free_gpus ? [h("b", {}, `${free_gpus}`), `${gpus ? ` of ${gpus}` : ""} ${(gpus || free_gpus) === 1 ? "GPU" : "GPUs"} free, `] : "", h("b", {}, String(free_hosts)), ` of ${hosts} ${hosts === 1 ? "host" : "hosts"} free`) : null,
    h("div", { class: "hosts" }, cluster.hosts.map(hostCell)),
    more > 0 ? h("p", { class: "second" }, `and ${more} more`) : null,
    cluster.waiting.length ? [h("h3", {}, `${cluster.waiting.length} waiting`), h("ul", { class: "plain" }, cluster.waiting.map((one) =>
      h("li", {}, runLink(one.run), " ", prose(one.why), one.since ? h("span", { class: "second" }, ` since ${duration(at - one.since)}`) : null)))] : null,
    cluster.running?.length ? h("p", { class: "sum" }, "running: ", cluster.running.map((run) => [runLink(run), " "])) : null,
    checkUp(cluster, at));
}

// What doctor found the last time: what is not well is read at once, the rest behind it.
function checkUp({ name, doctor }, at) {
  if (!doctor) return h("p", { class: "second" }, "Nobody has looked for what is in the way of runs here: ", h("code", {}, name === "local" ? "launch doctor" : `launch doctor ${name}`));
  const of = (level) => doctor.findings.filter((one) => one.level === level);
  const [problems, warnings] = [of("problem"), of("warning")];
  const count = (list, word) => (list.length ? `${list.length} ${word}${list.length === 1 ? "" : "s"}` : "");
  const said = [count(problems, "problem"), count(warnings, "warning")].filter(Boolean).join(", ") || "all is well";
  return h("details", { class: `check-up${problems.length ? " wrong" : ""}`, open: problems.length > 0 },
    h("summary", {}, `doctor${doctor.trial ? " --try" : ""}, ${ago(doctor.at, at)}: ${said}`),
    h("ul", { class: "plain" }, [...problems, ...warnings, ...of("ok")].map((one) =>
      h("li", {}, h("b", {}, `${one.level} `), h("span", { class: "second" }, `${one.about}: `), prose(one.text), one.hint ? h("span", { class: "second" }, " hint: ", prose(one.hint)) : null))));
}

function hostCell(host) {
  const squares = host.gpus ? h("span", { class: "gpus", role: "img", "aria-label": `${host.free_gpus ?? 0} of ${plural(host.gpus, "GPU")} free` },
    Array.from({ length: host.gpus }, (_, at) => h("i", { class: at < host.gpus - (host.free_gpus ?? 0) ? "taken" : "free" })))
    : host.free_gpus ? h("span", { class: "second" }, `${plural(host.free_gpus, "GPU")} free`) : null; // Grid Engine does not say how many there are
  return h("div", { class: `host host-${host.state}` }, h("b", { class: "cut", title: host.host }, host.host), squares,
    h("span", { class: "second cut", title: host.text || host.state }, host.runs.length ? host.runs.map(runLink) : host.text || host.state));
}

function runLink(id) {
  return h("a", { href: `#/run/${encodeURIComponent(id)}` }, id);
}
