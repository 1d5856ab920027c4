// Runs that one command has started, under one line: trials of a sweep, steps of a file, runs of a proof.
const WORDS = { sweep: "trials of a sweep", steps: "steps of a file", proof: "runs of a proof", scaling: "runs that measure scaling" };
const MOVING = ["unknown", "running", "regrouping", "starting", "queued"];
const WORST = ["failed", "lost", "cancelled"];

// Which runs have a line of their group above them: {id of the group -> its rows}; a run whose others are gone has none.
export function groupsOf(rows) {
  const groups = new Map();
  for (const row of rows) {
    if (!row.group) continue;
    if (!groups.has(row.group.id)) groups.set(row.group.id, []);
    groups.get(row.group.id).push(row);
  }
  for (const [id, members] of groups) if (members.length < 2) groups.delete(id);
  return groups;
}

// `found` in its order, with a line for each group where its first run would stand, and its runs below where it is open.
export function grouped(found, groups, isOpen) {
  const shown = groupsOf(found.filter((row) => groups.has(row.group?.id)));
  const lines = [];
  const done = new Set();
  for (const row of found) {
    const id = row.group?.id;
    if (!groups.has(id)) lines.push(row);
    else if (!done.has(id)) {
      done.add(id);
      const members = shown.get(id) ?? [row];
      lines.push(groupLine(groups.get(id), members, isOpen(id)), ...(isOpen(id) ? members : []));
    }
  }
  return lines;
}

function groupLine(all, found, open) {
  const { id, kind } = all[0].group;
  const states = new Map();
  for (const row of all) states.set(row.state, (states.get(row.state) ?? 0) + 1);
  const ended = all.every((row) => row.ended);
  const started = all.map((row) => row.started_at).filter((at) => at !== null && at !== undefined);
  const clusters = [...new Set(all.map((row) => row.cluster))];
  const tally = [...states].map(([state, many]) => `${many} ${state}`).join(", ");
  return {
    id: `group/${id}`, groupId: id, members: found, open, name: id, called: id, tags: [], ended,
    headline: `${all.length} ${WORDS[kind]}: ${tally}${found.length < all.length ? `; ${found.length} found` : ""}`,
    state: [...MOVING, ...WORST].find((state) => states.has(state)) ?? "succeeded",
    submitted_at: Math.min(...all.map((row) => row.submitted_at)), started_at: started.length ? Math.min(...started) : null,
    ended_at: ended ? Math.max(...all.map((row) => row.ended_at ?? 0)) || null : null,
    cluster: clusters.length === 1 ? clusters[0] : `${clusters.length} clusters`, restarts: all.reduce((sum, row) => sum + row.restarts, 0),
    step: null, total: null, rate: null, eta_s: null, as_of: null, args: {}, metrics: {}, best: {}, spark: [], spark_of: "",
  };
}
