// A state as a sign and a word.
import { glyphOf } from "./colours.js";
import { h } from "./dom.js";

export function stateChip(state) {
  return h("span", { class: `state state-${state}` }, h("span", { "aria-hidden": "true", class: "glyph" }, glyphOf(state)), state);
}
