// One palette for all: Okabe and Ito's, which people tell apart whatever colours they see; lines differ in dashes as well.

const ON_LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b27b00", "#3c9bd6", "#4d4d4d"];
const ON_DARK = ["#56b4e9", "#ff8a3d", "#2fc79b", "#e79ac6", "#f0b429", "#9ad0f5", "#c8c8c8"];
const DASHES = [[], [8, 4], [2, 3]];

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// How the line of this number is drawn: {stroke, dash}; 21 of them differ. The colour is that of the theme as it is read.
export function lineStyle(index) {
  return {
    get stroke() { return (isDark() ? ON_DARK : ON_LIGHT)[index % ON_LIGHT.length]; },
    dash: DASHES[Math.floor(index / ON_LIGHT.length) % DASHES.length],
  };
}

// A colour of the style sheet, for what is drawn on a canvas.
export function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const GLYPHS = {
  queued: "\u25cb", starting: "\u25d4", running: "\u25cf", regrouping: "\u21bb", suspended: "\u2016",
  succeeded: "\u2713", failed: "\u2715", cancelled: "\u2212", lost: "!", unknown: "?",
};

// The sign of a state beside its word, so that colour never says it alone.
export function glyphOf(state) {
  return GLYPHS[state] ?? "?";
}
