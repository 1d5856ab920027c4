// What a run wrote to `artifacts/`: pictures, pages in a frame in which nothing runs, texts and tables.
import { inAddress, putInAddress } from "../parts/address.js";
import { ask, askText } from "../parts/data.js";
import { button, h, prose } from "../parts/dom.js";
import { ago, bytes } from "../parts/format.js";

const MOST_ROWS = 500;
const MOST_COLUMNS = 100;

export function artifactsPart(id, { say }) {
  const path = `/api/runs/${encodeURIComponent(id)}/artifacts`;
  const list = h("ul", { class: "plain artifacts", "aria-label": "files" });
  const shown = h("div", { class: "artifact" });
  const element = h("section", { "aria-label": "artifacts" }, list, shown);
  let asked = 0;
  const show = async (file, folder) => {
    const mine = ++asked;
    putInAddress("artifact", file.name);
    for (const one of list.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one.dataset.name === file.name));
    const url = `${path}/${file.name.split("/").map(encodeURIComponent).join("/")}`;
    try {
      const made = await MAKERS[file.kind](url, short(file, folder));
      if (mine === asked) shown.replaceChildren(made);
    } catch (error) {
      say(error.message);
    }
  };
  const load = async () => {
    try {
      const { folder, files, more } = await ask(path);
      list.replaceChildren(...files.map((file) => h("li", {}, file.kind === "other" ? h("span", {}, short(file, folder)) : button(short(file, folder), () => show(file, folder), { class: "small", "aria-pressed": "false", "data-name": file.name }),
        h("span", { class: "second" }, ` ${bytes(file.bytes)}, ${ago(file.at)}`))));
      if (more) list.append(h("li", { class: "second" }, "and more, which are not shown"));
      if (!files.length) return element.replaceChildren(h("p", { class: "empty" }, ...prose("What a script writes to the folder `LAUNCH_ARTIFACTS` names is shown here: .png, .svg, .html, .md, .csv. From other machines `launch fetch RUN --outputs` brings it.")));
      const first = files.find(({ name }) => name === inAddress("artifact")) ?? files.find(({ kind }) => kind !== "other");
      if (first) show(first, folder);
    } catch (error) {
      element.replaceChildren(h("p", { class: "empty" }, error.message));
    }
  };
  load();
  return { element };
}

function short({ name }, folder) {
  return name.startsWith(`${folder}/`) ? name.slice(folder.length + 1) : name;
}

const MAKERS = {
  picture: async (url, name) => h("img", { src: url, alt: name }),
  page: async (url, name) => h("iframe", { src: url, title: name, sandbox: "", referrerpolicy: "no-referrer" }),
  text: async (url) => h("article", { class: "markdown" }, markdown(await askText(url))),
  table: async (url) => csvTable(csvRows(await askText(url))),
};

// Headings, lists, code and paragraphs of Markdown; all else, such as HTML in it, is shown as it is written.
export function markdown(text) {
  const made = [];
  let code = null;
  for (const line of text.split(/\r?\n/)) {
    const heading = /^(#{1,4}) (.*)$/.exec(line);
    const item = /^\s*(?:[-*]|\d+\.) (.*)$/.exec(line);
    if (line.startsWith("```")) code = code ? null : (made.push((code = h("pre"))), code);
    else if (code) code.append(`${line}\n`);
    else if (heading) made.push(h(`h${Math.min(4, heading[1].length + 1)}`, {}, prose(heading[2])));
    else if (item) (made.at(-1)?.tagName === "UL" ? made.at(-1) : (made.push(h("ul")), made.at(-1))).append(h("li", {}, prose(item[1])));
    else if (line.trim()) (made.at(-1)?.tagName === "P" && made.at(-1).dataset.open ? made.at(-1) : (made.push(h("p", { "data-open": "1" })), made.at(-1))).append(...prose(`${line} `));
    else if (made.at(-1)) delete made.at(-1).dataset.open;
  }
  return made;
}

// The rows of a CSV, with quotes as RFC 4180 has them.
export function csvRows(text) {
  const rows = [[]];
  for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|$)/g)) {
    rows.at(-1).push(quoted === undefined ? plain : quoted.replaceAll('""', '"'));
    if (end !== ",") {
      if (rows.length > MOST_ROWS + 1) break;
      rows.push([]);
    }
  }
  return rows.filter((row) => row.length > 1 || row[0]);
}

function csvTable([head = [], ...rows]) {
  const cells = (row, tag) => row.slice(0, MOST_COLUMNS).map((cell) => h(tag, { class: cell !== "" && Number.isFinite(Number(cell)) ? "numeric" : null, scope: tag === "th" ? "col" : null }, cell));
  return h("div", {}, h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, cells(head, "th"))), h("tbody", {}, rows.slice(0, MOST_ROWS).map((row) => h("tr", {}, cells(row, "td")))))),
    rows.length > MOST_ROWS ? h("p", { class: "note" }, `The first ${MOST_ROWS} rows.`) : null);
}
