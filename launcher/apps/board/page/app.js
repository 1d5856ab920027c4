// The frame round the views: which one is shown, the keys, light and dark.
import { button, h, prose, remember, remembered } from "./parts/dom.js";
import { exported } from "./parts/data.js";
import { showHelp } from "./parts/help.js";
import { clustersView } from "./views/clusters.js";
import { compareView } from "./views/compare.js";
import { runView } from "./views/run.js";
import { runsView } from "./views/runs.js";

const VIEWS = { runs: runsView, run: runView, compare: compareView, clusters: clustersView };
const TITLES = { runs: "Runs", run: "Run", compare: "Compare", clusters: "Clusters" };
const main = document.getElementById("main");
let view = { stop() {}, keys: {} };
let saidTimer = 0;

// Words at the foot of the page that go away by themselves.
function say(text) {
  const place = document.getElementById("said");
  place.replaceChildren(...prose(text));
  clearTimeout(saidTimer);
  saidTimer = setTimeout(() => (place.textContent = ""), 8000);
}

function go(hash) {
  location.hash = hash;
}

function show() {
  const [name, ...parts] = location.hash.split("?")[0].replace(/^#\/?/, "").split("/");
  if (name === "main") return main.focus();
  const known = name in VIEWS ? name : "runs";
  view.stop();
  main.className = `view-${known}`;
  main.scrollTop = 0;
  document.title = `${TITLES[known]} \u00b7 launch board`;
  for (const link of document.querySelectorAll("#top nav a")) {
    const here = link.dataset.view === known || (known === "run" && link.dataset.view === "runs");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view = VIEWS[known](main, { say, go, parts: parts.map(decodeURIComponent) });
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  remember("theme", theme);
  document.dispatchEvent(new Event("theme"));
}

function turnTheme() {
  const dark = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  setTheme(dark === "dark" ? "light" : "dark");
}

function frame() {
  const links = ["runs", "compare", "clusters"].filter((name) => !(exported && name === "clusters"));
  document.getElementById("top").append(
    h("a", { class: "brand", href: "#/runs" }, "launch", h("span", {}, " board")),
    h("nav", { "aria-label": "views" }, links.map((name) => h("a", { href: `#/${name}`, "data-view": name }, TITLES[name]))),
    h("span", { class: "grow" }),
    h("span", { class: "offline", role: "status" }, "not connected"),
    button("\u25d0", turnTheme, { class: "icon", title: "light or dark (t)", "aria-label": "light or dark" }),
    button("?", showHelp, { class: "icon", title: "keys and words (?)", "aria-label": "help" }));
}

const KEYS = {
  "?": showHelp, t: turnTheme, 1: () => go("#/runs"), 2: () => go("#/compare"), 3: () => go("#/clusters"),
  "/": () => document.getElementById("search")?.select(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input:not([type=checkbox]), select, textarea")) return event.key === "Escape" && event.target.blur();
  const action = view.keys?.[event.key] ?? KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname + location.hash); // the cookie is there
setTheme(remembered("theme", null));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")));
frame();
addEventListener("hashchange", show);
show();
