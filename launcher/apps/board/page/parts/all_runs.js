// The rows of all runs, kept current for a view.
import { ask, follow } from "./data.js";

// `changed(ids, gone)`: these rows are other, or with null all of them; `failed(error)`, `connected(now)`.
// Gives {rows(), answered(), stop()}. An answer may be older than what was told while it was on its way: that is kept.
export function followRuns({ changed, failed, connected }) {
  let rows = new Map();
  let answered = false;
  let asked = 0; // questions for all of them that are under way
  let meanwhile = []; // what was told since the first of these
  const take = (change) => {
    for (const row of change.runs) rows.set(row.id, row);
    for (const id of change.gone) rows.delete(id);
  };
  const load = async () => {
    asked += 1;
    try {
      rows = new Map((await ask("/api/runs")).runs.map((row) => [row.id, row]));
      meanwhile.forEach(take);
      answered = true;
      changed(null, []);
    } catch (error) {
      failed(error);
    }
    asked -= 1;
    if (!asked) meanwhile = [];
  };
  load();
  const stop = follow("", {
    hello: load, // what changed before this page was heard was told to nobody
    runs: (change) => {
      if (asked) meanwhile.push(change);
      take(change);
      changed(change.runs.map((row) => row.id), change.gone);
    },
    connected,
  });
  return { rows: () => rows, answered: () => answered, stop };
}
