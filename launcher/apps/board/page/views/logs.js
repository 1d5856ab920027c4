// The log of all ranks, merged: live at its end, older lines by scrolling up, searched by the server.
import { inAddress, putInAddress } from "../parts/address.js";
import { afterPause, atMostEvery, button, h, oncePerFrame, roleChoice, toggle } from "../parts/dom.js";
import { ask, exported } from "../parts/data.js";
import { clockTime, plainText, plural } from "../parts/format.js";

const MOST_LINES = 4000; // in the page
const AT_ONCE = 500;
const MOST_CHARACTERS = 2000; // of a line before one asks for all of it

export function logsPart(id, { say, roles = [] }) {
  const lines = h("div", { class: "lines", role: "log", "aria-label": "log", tabindex: "0", "aria-live": "off" });
  const search = h("input", { type: "search", id: "search", placeholder: "search the log", "aria-label": "search the log", value: inAddress("log") ?? "", on: { input: afterPause(250, () => ((around = null), choose(), load())) } });
  const ranks = h("input", { type: "text", class: "ranks", placeholder: "ranks: 0,3-5", "aria-label": "ranks", value: inAddress("ranks") ?? "", on: { input: afterPause(400, () => (choose(), load())) } });
  const role = roleChoice(roles, () => ((around = null), setFollowing(true), load()));
  const choose = () => (putInAddress("log", search.value), putInAddress("ranks", ranks.value));
  const older = button("older lines", () => loadOlder(), { class: "more" });
  const following = toggle("follow", true, (on) => on && load());
  const place = h("p", { class: "note", role: "status" });
  const element = h("section", { class: "logs", "aria-label": "logs" },
    h("div", { class: "bar" }, search, ranks, role, following, place), older, lines);
  let before = null; // cursor of what is older
  let around = null; // the moment that is looked at, where it is not the end
  let sought = ""; // the line that is looked for there, where its words are known
  let comes = true; // the page is scrolled to the lines that are looked for
  let asking = null;
  let waiting = [];

  const question = (more) => ({ ...(role.value ? { role: role.value } : {}), ranks: ranks.value.replaceAll(" ", ""), search: search.value, limit: AT_ONCE, ...more });
  const fetchLines = async (more) => {
    asking?.abort();
    asking = new AbortController();
    const answer = await ask(`/api/runs/${encodeURIComponent(id)}/logs`, question(more), asking.signal);
    return exported ? { ...answer, lines: answer.lines.filter(matching()) } : answer;
  };
  const matching = () => {
    const word = search.value.toLowerCase();
    const chosen = ranks.value.trim() ? ranksOf(ranks.value) : null;
    return (line) => (!word || line.text.toLowerCase().includes(word)) && (!chosen || chosen.has(line.rank));
  };
  const guarded = (work) => async () => {
    try {
      await work();
    } catch (error) {
      if (error.name !== "AbortError") say(error.message);
    }
  };
  const load = guarded(async () => {
    const answer = await fetchLines(around === null ? {} : { around });
    waiting = [];
    before = answer.before;
    lines.replaceChildren(...answer.lines.map((line) => lineElement(line, search.value)));
    older.hidden = before === null;
    place.replaceChildren(...(around === null ? [answer.lines.length ? "" : "no lines"] : [`about ${clockTime(around)} `, button("to the end", () => (around = null, setFollowing(true), load()), { class: "small" })]));
    if (around === null) lines.scrollTop = lines.scrollHeight;
    else showMoment();
  });
  const loadOlder = guarded(async () => {
    const answer = await fetchLines({ before });
    before = answer.before;
    older.hidden = before === null;
    const height = lines.scrollHeight;
    lines.prepend(...answer.lines.map((line) => lineElement(line, search.value)));
    lines.scrollTop += lines.scrollHeight - height;
  });
  const showMoment = () => {
    const all = [...lines.children];
    const found = (sought ? all.findLast((one) => one.lastElementChild.textContent.trim() === sought) : null)
      ?? all.find((one) => Number(one.dataset.at) >= around - 0.001) ?? lines.lastElementChild;
    if (!found) return;
    found.classList.add("found");
    lines.scrollTop += found.getBoundingClientRect().top - lines.getBoundingClientRect().top - (lines.clientHeight - found.offsetHeight) / 2;
    if (comes) lines.scrollIntoView({ block: "nearest" });
  };
  const setFollowing = (on) => following.setAttribute("aria-pressed", String(on));
  const follows = () => around === null && following.getAttribute("aria-pressed") === "true";
  const isAtEnd = () => lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
  const flush = oncePerFrame(() => {
    const stays = isAtEnd();
    lines.append(...waiting.splice(0).map((line) => lineElement(line, search.value)));
    while (lines.childElementCount > MOST_LINES) lines.firstElementChild.remove();
    if (stays) lines.scrollTop = lines.scrollHeight;
  });
  const renew = atMostEvery(1000, () => role.value && follows() && isAtEnd() && load()); // new lines come of the run's own role alone
  load();
  return {
    element, renew,
    add({ lines: told, skipped }) {
      if (role.value || !follows()) return;
      const test = matching();
      waiting.push(...told.filter(test));
      if (skipped) waiting.push({ text: `(${plural(skipped, "more line", "more lines")}: search shows them)`, rank: null, at: null });
      flush();
    },
    // Shows the lines about a moment, of one rank or all; and there this line, if it is among them. `brings`: and brings
    // them where they are seen, for a person who has asked for them.
    jump(at, rank, line = "", brings = true) {
      comes = brings;
      role.value = "";
      around = at;
      sought = plainText(line).trim();
      search.value = "";
      ranks.value = rank === null || rank === undefined ? "" : String(rank);
      choose();
      setFollowing(false);
      load();
    },
    showRole(name) {
      role.value = name;
      around = null;
      setFollowing(true);
      ranks.value = search.value = "";
      choose();
      load();
    },
    stop: () => asking?.abort(),
  };
}

// `0,3-5` -> {0, 3, 4, 5}
function ranksOf(text) {
  const found = new Set();
  for (const part of text.split(",")) {
    const [first, last] = part.split("-").map(Number);
    for (let rank = first; rank <= Math.min(last ?? first, first + 100000); rank++) found.add(rank);
  }
  return found;
}

function lineElement(line, word) {
  const text = plainText(line.text);
  const whole = text.length <= MOST_CHARACTERS;
  const shown = h("span", { class: "text" }, ...highlighted(whole ? text : text.slice(0, MOST_CHARACTERS), word));
  if (!whole) {
    const rest = button(plural(text.length - MOST_CHARACTERS, "more character"), () => (shown.replaceChildren(text), rest.remove()), { class: "small" });
    shown.append(rest);
  }
  return h("div", { class: "line", "data-at": line.at }, h("span", { class: "when" }, clockTime(line.at)),
    h("span", { class: "who" }, line.rank === null || line.rank === undefined ? (line.node === null || line.node === undefined ? "" : `n${line.node}`) : String(line.rank)), shown);
}

function highlighted(text, word) {
  if (!word) return [text];
  const parts = [];
  const small = text.toLowerCase();
  const looked = word.toLowerCase();
  let from = 0;
  for (let at = small.indexOf(looked); at >= 0; at = small.indexOf(looked, from)) {
    parts.push(text.slice(from, at), h("mark", {}, text.slice(at, at + word.length)));
    from = at + word.length;
  }
  return [...parts, text.slice(from)];
}
