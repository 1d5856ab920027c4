// Elements from words: what comes from runs is only ever text, never markup.
import { inAddress, putInAddress } from "./address.js";

// An element with attributes and children. `on` has listeners; a child may be a string, an element, null or a list.
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// An element of SVG.
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

// Text for people: what stands between backticks is code.
export function prose(text) {
  const parts = String(text ?? "").split("`");
  if (parts.length % 2 === 0) return [parts.join("")]; // one too many: it marks nothing
  return parts.map((part, at) => (at % 2 ? h("code", {}, part) : part)).filter((part) => part !== "");
}

export function button(text, onClick, attributes = {}) {
  return h("button", { type: "button", ...attributes, on: { click: onClick } }, text);
}

// A choice of one of several words, shown as a row of buttons that belong together.
export function choice(label, options, current, onChoose) {
  const group = h("div", { class: "choice", role: "group", "aria-label": label });
  const show = (chosen) =>
    group.replaceChildren(
      ...options.map(([value, text]) =>
        button(text, () => (show(value), onChoose(value)), { "aria-pressed": String(value === chosen) }),
      ),
    );
  show(current);
  return group;
}

// A list of a run's roles, of which one is chosen: "" is its own. Hidden where it has no others.
export function roleChoice(roles, onChange) {
  return h("select", { "aria-label": "role", hidden: !roles.length, on: { change: onChange } },
    ["", ...roles].map((name) => h("option", { value: name }, name || "main role")));
}

// A button that is on or off.
export function toggle(text, current, onChange, attributes = {}) {
  const made = button(text, () => {
    const next = made.getAttribute("aria-pressed") !== "true";
    made.setAttribute("aria-pressed", String(next));
    onChange(next);
  }, { class: "toggle", "aria-pressed": String(current), ...attributes });
  return made;
}

// A labelled list of which one is chosen.
export function picker(label, options, current, onChoose) {
  const list = h("select", { on: { change: () => onChoose(list.value) } },
    options.map(([value, text]) => h("option", { value, selected: value === current }, text)));
  return h("label", { class: "picker" }, h("span", {}, label), list);
}

// Runs `work` once per frame at most, however often it is asked for.
export function oncePerFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}

// Runs `work` when nobody has asked for it again for `wait` milliseconds.
export function afterPause(wait, work) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), wait);
  };
}

// Runs `work` soon after it was asked for, and at most once in `wait` milliseconds, however often that is.
export function atMostEvery(wait, work) {
  let timer = 0;
  return () => {
    timer ||= setTimeout(() => ((timer = 0), work()), wait);
  };
}

// What a person has chosen in a view: what the address says, else what the browser has kept, which is then in the
// address too.
export function chosen(key, fallback) {
  const told = inAddress(key);
  if (told !== undefined && typeof told === typeof fallback && Array.isArray(told) === Array.isArray(fallback)) return told;
  const kept = remembered(key, fallback);
  if (JSON.stringify(kept) !== JSON.stringify(fallback)) putInAddress(key, kept);
  return kept;
}

export function choose(key, value) {
  putInAddress(key, value);
  remember(key, value);
}

// What the browser has kept, where it keeps things.
export function remembered(key, fallback) {
  try {
    return JSON.parse(localStorage.getItem(`launch.${key}`)) ?? fallback;
  } catch {
    return fallback; // a page from disk may have no storage
  }
}

export function remember(key, value) {
  try {
    localStorage.setItem(`launch.${key}`, JSON.stringify(value));
  } catch {
    return; // a page from disk may have no storage: the choice holds while it is open
  }
}
