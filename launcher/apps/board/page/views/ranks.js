// Nodes and ranks as a grid: who is where, who works, who is behind.
import { button, h, prose } from "../parts/dom.js";
import { bytes, number, percent, plainText, plural } from "../parts/format.js";
import { stateChip } from "../parts/state.js";

export function ranksPart(onRank, onRole) {
  const element = h("section", { "aria-label": "nodes and ranks" });
  return {
    element,
    show(head) {
      const roles = head.roles?.length ? [roleTable(head.roles, onRole)] : [];
      if (!head.nodes.length) return element.replaceChildren(h("p", { class: "empty" }, "No node has been heard of yet."), ...roles);
      const opened = element.querySelector("details")?.open ?? head.ranks.length <= 16;
      const ranks = new Map(head.ranks.map((rank) => [rank.rank, rank]));
      element.replaceChildren(
        h("div", { class: "nodes" }, head.nodes.map((node) => nodeCard(node, ranks, onRank))),
        ...(head.hang ? [h("p", { class: "words" }, head.hang)] : []),
        ...(head.last_rank ? [h("p", { class: "note" }, head.last_rank)] : []),
        ...(head.avoided?.length ? [h("p", { class: "note" }, prose(`not used again for a while: ${head.avoided.map((one) => `${one.host} (${one.evidence})`).join(", ")}`))] : []),
        ...roles,
        ...(head.ranks.length ? [rankTable(head.ranks, opened, onRank)] : []));
    },
  };
}

function roleTable(roles, onRole) {
  const titles = ["role", "state", "", "ranks", "step", "restarts", ""];
  const row = (role) => h("tr", {},
    h("th", { scope: "row" }, button(role.name, () => onRole(role.name), { class: "small", "aria-label": `log of role ${role.name}` })),
    h("td", {}, stateChip(role.state)),
    h("td", {}, h("div", { class: "cells" }, role.members.map((rank) => rankCell(rank, () => onRole(role.name))))),
    [role.ranks, number(role.step), role.restarts].map((cell) => h("td", { class: "numeric" }, String(cell ?? ""))), h("td", {}, plainText(role.words)));
  return h("div", { class: "wide" }, h("table", { "aria-label": "roles" },
    h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col", class: ["ranks", "step", "restarts"].includes(title) ? "numeric" : null }, title)))),
    h("tbody", {}, roles.map(row))));
}

function nodeCard(node, ranks, onRank) {
  const load = node.load;
  return h("article", { class: "node" },
    h("h3", {}, h("span", { class: "cut" }, node.host || `node ${node.node}`), h("span", { class: `node-state node-${node.state}` }, node.state)),
    load ? h("dl", { class: "meters" },
      meter("CPU", load.cpu / load.cores, `${number(Math.round(load.cpu * 10) / 10)} of ${load.cores} cores`),
      meter("memory", load.memory / load.memory_total, `${bytes(load.memory)} of ${bytes(load.memory_total)}`),
      (load.gpus ?? []).map((gpu) => meter(`GPU ${gpu.index}`, gpu.busy === null ? null : gpu.busy / 100, `${gpu.busy === null ? "" : `${Math.round(gpu.busy)} %, `}${bytes(gpu.memory)} of ${bytes(gpu.memory_total)}`))) : null,
    h("div", { class: "cells" }, node.ranks.map((number_of) => rankCell(ranks.get(number_of) ?? { rank: number_of, state: node.state }, onRank))));
}

function meter(name, part, words) {
  const bar = part === null || Number.isNaN(part) ? null : h("meter", { min: 0, max: 1, value: Math.min(1, part), "aria-label": `${name} ${percent(part)}` });
  return [h("dt", {}, name), h("dd", {}, bar, h("span", {}, words))];
}

function rankCell(rank, onRank) {
  const late = rank.straggler ? "slow" : rank.behind > 0 ? `\u2212${rank.behind}` : "";
  return button([h("b", {}, String(rank.rank)), late ? h("span", {}, late) : null], () => onRank(rank.rank),
    { class: `cell rank-${rank.state}${rank.straggler ? " straggler" : ""}`, title: rankWords(rank), "aria-label": `${rankWords(rank)}: to its log` });
}

function rankWords(rank) {
  const parts = [`rank ${rank.rank}`, rank.state, rank.step === null || rank.step === undefined ? "" : `step ${number(rank.step)}`,
    rank.behind > 0 ? `${rank.behind} behind` : "", rank.straggler ? "slow: the others wait for it" : "", rank.memory ? bytes(rank.memory) : "", rank.in_hang ?? ""];
  return parts.filter(Boolean).join(", ");
}

function rankTable(ranks, opened, onRank) {
  const titles = ["rank", "node", "state", "step", "behind", "CPU", "memory", "GPU", "GPU memory", "pid", ...(ranks.some((rank) => rank.in_hang) ? ["in the hang"] : [])];
  const row = (rank) => h("tr", { class: rank.straggler ? "straggler" : null },
    h("th", { scope: "row" }, button(String(rank.rank), () => onRank(rank.rank), { class: "small", "aria-label": `log of rank ${rank.rank}` })),
    [rank.node, `${rank.state}${rank.straggler ? ", slow" : ""}`, number(rank.step), rank.behind || "", number(rank.cpu), bytes(rank.memory),
      rank.gpu_busy === null || rank.gpu_busy === undefined ? (rank.gpus ?? []).join(" ") : `${Math.round(rank.gpu_busy)} %`, bytes(rank.gpu_memory), rank.pid, ...(titles.length > 10 ? [rank.in_hang] : [])]
      .map((cell, at) => h("td", { class: at === 1 || at === 9 ? null : "numeric" }, String(cell ?? ""))));
  return h("details", { class: "events", open: opened }, h("summary", {}, `${plural(ranks.length, "rank")} in figures`),
    h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col", class: ["rank", "state", "in the hang"].includes(title) ? null : "numeric" }, title)))),
      h("tbody", {}, ranks.map(row)))));
}
