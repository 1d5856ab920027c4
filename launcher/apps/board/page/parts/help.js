// What `?` shows, and the frame of every dialog.
import { button, h, prose } from "./dom.js";

const KEYS_TOLD = [
  ["/", "search"], ["\u2191 \u2193 or k j", "a row up, down"], ["Enter", "open the run"], ["\u2192 \u2190", "unfold, fold: trials, steps, runs of a proof"], ["x", "choose the run, or all of a fold, for comparing"],
  ["c", "compare what is chosen"], ["\u2190 \u2192", "of a run: the tab before, after"], ["1 2 3", "runs, compare, clusters"], ["t", "light or dark"],
  ["Esc", "close; leave the search field; back to the runs"], ["?", "this"],
];
const WORDS_TOLD = [
  ["name:lr*", "id, job or name is like this"], ["state:failed,lost", "in one of these states; `active` and `ended` are several"],
  ["tag:sweep", "has this tag"], ["cluster:a*", "on this cluster"], ["since:2d", "submitted since: 90s, 12h, 2d, 1w or 2026-01-31"],
  ["-tag:old", "the opposite"], ["any other word", "is somewhere in name, note, tags or message"],
];
const CURVES_TOLD = [
  ["red line", "a failure"], ["dashed line", "the first step of a generation"], ["\u25b2", "values that were NaN or infinite"],
  ["\u2022 \u2502", "at the foot: a checkpoint, a validation"], ["\u25c6", "a checkpoint that is the best (green), or survives the loss of a disk"],
  ["drag", "zoom into a part of all curves"], ["double click", "all of it again"], ["+ \u2212 0", "zoom in, out, all of it, at a curve with the keyboard"],
];

export function showHelp() {
  const list = (rows) => h("dl", { class: "keys" }, rows.map(([key, text]) => [h("dt", {}, key), h("dd", {}, prose(text))]));
  openDialog("Keys and words", [h("h3", {}, "Keys"), list(KEYS_TOLD), h("h3", {}, "Words for searching runs"), list(WORDS_TOLD), h("h3", {}, "Curves"), list(CURVES_TOLD)]);
}

// A dialog with these contents; gives it, and goes away when it is closed.
export function openDialog(title, contents, buttons = []) {
  const dialog = h("dialog", { "aria-label": title, on: { close: () => dialog.remove(), click: (event) => event.target === dialog && dialog.close() } },
    h("div", { class: "dialog" }, h("h2", {}, title), contents,
      h("div", { class: "buttons" }, buttons, button("close", () => dialog.close()))));
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
