// A table that has as many rows in the page as one can see, however many there are.
import { button, h, oncePerFrame } from "./dom.js";

const SPARE = 8; // rows above and below what is seen

// columns: [{key, title, width, cell(row), sort(row)?, numeric?}]; a row is told by `keyOf`. `onOpen(row)` for a click or
// Enter, `onPick(row)` for x, `onFold(row, open)` for the arrows to the side; `parentOf(row)` is the key of the row that it
// belongs to. Gives {element, show(rows, columns, sorted), enter()}.
export function bigTable({ label, keyOf, rowHeight, onOpen, onPick, onSort, onFold, isPicked, parentOf }) {
  const head = h("thead");
  const body = h("tbody");
  const table = h("table", { class: "big", "aria-label": label }, head, body);
  const element = h("div", { class: "scroller", tabindex: "-1" }, table);
  const made = new Map(); // key -> {tr, row, stamp}
  let rows = [];
  let columns = [];
  let sorted = { key: "", down: true };
  let stamp = 0;
  let current = null; // key of the row that the keyboard is at

  const draw = () => {
    const first = Math.max(0, Math.floor(element.scrollTop / rowHeight) - SPARE);
    const last = Math.min(rows.length, Math.ceil((element.scrollTop + element.clientHeight) / rowHeight) + SPARE);
    const seen = rows.slice(first, last);
    const keys = new Set(seen.map(keyOf));
    for (const key of made.keys()) if (!keys.has(key)) made.delete(key);
    const shown = seen.map((row, at) => rowElement(row, first + at));
    place(body, [gap(first), ...shown, gap(rows.length - last)]);
  };
  const gaps = [0, 1].map(() => h("tr", { "aria-hidden": "true", class: "gap" }, h("td")));
  let nextGap = 0;
  const gap = (count) => {
    const tr = gaps[nextGap++ % 2];
    tr.firstChild.style.height = `${count * rowHeight}px`;
    tr.firstChild.colSpan = Math.max(1, columns.length);
    return tr;
  };

  const rowElement = (row, index) => {
    const key = keyOf(row);
    const picked = isPicked(row);
    let known = made.get(key);
    if (!known) made.set(key, (known = { tr: h("tr", { "data-key": key }) }));
    if (known.row !== row || known.stamp !== stamp || known.picked !== picked) {
      known.tr.replaceChildren(...columns.map((column) => h("td", { class: column.numeric ? "numeric" : null }, column.cell(row))));
      Object.assign(known, { row, stamp, picked });
    }
    known.tr.setAttribute("aria-rowindex", index + 2);
    known.tr.setAttribute("aria-selected", String(picked));
    known.tr.classList.toggle("nested", parentOf(row) !== null);
    known.tr.tabIndex = key === current || (current === null && index === 0) ? 0 : -1;
    return known.tr;
  };

  const drawHead = () => {
    head.replaceChildren(h("tr", { "aria-rowindex": 1 }, columns.map((column) => {
      const way = column.sort && sorted.key === column.key ? (sorted.down ? "descending" : "ascending") : null;
      const title = column.sort
        ? button([column.title, h("span", { "aria-hidden": "true", class: "way" }, way ? (sorted.down ? "\u2193" : "\u2191") : "")], () => onSort(column), { title: column.hint ?? null })
        : h("span", { class: column.quiet ? "unseen" : null }, column.title);
      const cell = h("th", { scope: "col", class: column.numeric ? "numeric" : null, "aria-sort": way }, title);
      cell.style.width = `${column.width / 14}rem`;
      return cell;
    })));
    table.style.minWidth = `${columns.reduce((sum, column) => sum + column.width, 0) / 14}rem`; // widths are told for letters of 14 pixels
  };

  const goTo = (index) => {
    if (!rows.length) return;
    const at = Math.max(0, Math.min(rows.length - 1, index));
    current = keyOf(rows[at]);
    const top = at * rowHeight;
    const room = element.clientHeight - head.offsetHeight - rowHeight;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top > element.scrollTop + room) element.scrollTop = top - room;
    draw();
    made.get(current)?.tr.focus({ preventScroll: true });
  };
  const at = () => rows.findIndex((row) => keyOf(row) === current);
  const page = () => Math.max(1, Math.floor(element.clientHeight / rowHeight) - 2);
  const moves = {
    ArrowDown: () => goTo(at() + 1), j: () => goTo(at() + 1), ArrowUp: () => goTo(at() - 1), k: () => goTo(at() - 1),
    PageDown: () => goTo(at() + page()), PageUp: () => goTo(at() - page()), Home: () => goTo(0), End: () => goTo(rows.length - 1),
  };
  const rowOf = (event) => made.get(event.target.closest("tr[data-key]")?.dataset.key)?.row;
  body.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const row = rowOf(event);
    if (event.key in moves) moves[event.key]();
    else if (event.key === "Enter" && row && !event.target.closest("a, button, input")) onOpen(row);
    else if (event.key === "x" && row) onPick(row);
    else if (event.key === "ArrowRight" && row) onFold(row, true);
    else if (event.key === "ArrowLeft" && row) {
      if (parentOf(row) === null) onFold(row, false);
      else goTo(rows.findIndex((one) => keyOf(one) === parentOf(row)));
    }
    else return;
    event.preventDefault();
  });
  body.addEventListener("click", (event) => {
    const row = rowOf(event);
    if (!row || event.target.closest("a, button, input, label") || String(getSelection())) return;
    onOpen(row);
  });
  body.addEventListener("focusin", (event) => (current = event.target.closest("tr[data-key]")?.dataset.key ?? current));
  const later = oncePerFrame(draw);
  element.addEventListener("scroll", later, { passive: true });
  new ResizeObserver(later).observe(element);

  return {
    element,
    // The arrows go on from the first row.
    enter: () => goTo(Math.max(0, at())),
    show(newRows, newColumns, newSorted) {
      if (newColumns !== columns || newSorted !== sorted) {
        [columns, sorted] = [newColumns, newSorted];
        stamp += 1;
        drawHead();
      }
      rows = newRows;
      table.setAttribute("aria-rowcount", rows.length + 1);
      draw();
    },
  };
}

// Makes these the children, and moves as few as possible: what stays keeps its focus.
function place(parent, children) {
  const kept = new Set(children);
  for (const one of [...parent.children]) if (!kept.has(one)) one.remove();
  children.forEach((child, at) => {
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null);
  });
}
