// What all charts of a view have in common: axes, smoothing, the part that is seen. Kept from page to page.
import { inAddress, putInAddress } from "./address.js";
import { exported } from "./data.js";
import { button, choice, choose, chosen, h, toggle } from "./dom.js";

// Gives {element, options(), setRange(range)}; `onChange(newRange)` is called whenever the charts are to be drawn anew.
export function chartBar(all, onChange) {
  const kept = { by: "step", smooth: 0, logY: false, logX: false, ...chosen("curves", {}) };
  const ways = exported ? all.slice(0, 1) : all; // an exported page has the curves by step alone
  const known = ways.some(([by]) => by === kept.by);
  const options = { ...kept, by: known ? kept.by : ways[0][0], range: rangeOf(inAddress("range")) };
  const set = (change, newRange = false) => {
    Object.assign(options, change);
    const { range, ...rest } = options;
    choose("curves", ways.length > 1 ? rest : { ...rest, by: kept.by }); // where there is no choice, none was made
    putInAddress("range", range);
    whole.hidden = range === null;
    onChange(newRange);
  };
  const whole = button("show all", () => set({ range: null }, true), { hidden: options.range === null, class: "primary" });
  const weight = h("output", {}, String(options.smooth));
  const slider = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: options.smooth,
    on: { input: () => ((weight.textContent = slider.value), set({ smooth: Number(slider.value) })) } });
  const element = h("div", { class: "bar" },
    ways.length > 1 && choice("horizontal axis", ways, options.by, (by) => set({ by, range: null }, true)),
    h("label", { class: "smooth" }, "smoothing", slider, weight),
    toggle("log y", options.logY, (logY) => set({ logY })),
    ways.length > 1 && toggle("log x", options.logX, (logX) => set({ logX })),
    whole);
  return { element, options: () => options, setRange: (range) => set({ range }, true) };
}

function rangeOf(told) {
  return Array.isArray(told) && told.length === 2 && told.every(Number.isFinite) && told[0] < told[1] ? told : null;
}
