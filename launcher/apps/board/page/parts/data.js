// Where everything on the page comes from: the board's server, or the answers that an exported page carries in itself.

const carried = document.getElementById("board-data");
const answers = carried ? JSON.parse(carried.textContent) : null; // {path without its query: what the server answered}

export const exported = answers !== null;
let board = null; // what the server is and lets this page do

// The answer to a question; a parameter that is null is not sent. Throws an Error whose message is for people.
export async function ask(path, parameters = {}, signal = undefined) {
  if (answers) {
    const whole = parameters.of ? `${path}?of=${parameters.of}` : path;
    if (whole in answers) return structuredClone(answers[whole]);
    throw new Error("this page was exported without that");
  }
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const asked = `${path}${query.size ? `?${query}` : ""}`;
  return read(() => fetch(asked, { signal, credentials: "same-origin", headers: { Accept: "application/json" } }));
}

// The text of a file of a run.
export async function askText(url) {
  const answer = await fetch(url, { credentials: "same-origin" });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? `the board answered ${answer.status}`);
  return answer.text();
}

// What an action said; with `dry`, what it would do.
export async function act(run, action, body) {
  return read(() => fetch(`/api/runs/${encodeURIComponent(run)}/${action}`, {
    method: "POST", credentials: "same-origin", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-Launch-Token": board?.post_token ?? "" },
  }));
}

// What the server is and allows: {version, actions, post_token}.
export async function boardHere() {
  board ??= exported ? { actions: false } : await ask("/api/board");
  return board;
}

async function read(send) {
  let answer;
  try {
    answer = await send();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the board does not answer: is `launch board` still running?");
  }
  if (answer.status === 401) throw new Error("the board was started anew: open the address that it printed");
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error([told.error ?? `the board answered ${answer.status}`, told.hint].filter(Boolean).join("; "));
  return told;
}

// What changes from now on. `listeners` has a function for each kind of event, and `connected`, told true or false.
// A page that nobody sees holds no connection: browsers allow six to one server, over all pages together.
export function follow(run, listeners) {
  if (exported) return () => {};
  const kinds = Object.keys(listeners).filter((one) => one !== "connected");
  let source = null;
  const open = () => {
    source = new EventSource(run ? `/api/live?run=${encodeURIComponent(run)}` : "/api/live");
    source.addEventListener("open", () => listeners.connected?.(true));
    source.addEventListener("error", () => listeners.connected?.(false));
    for (const kind of kinds) source.addEventListener(kind, (event) => listeners[kind](JSON.parse(event.data)));
  };
  const close = () => (source?.close(), (source = null));
  const turn = () => {
    if (!document.hidden) source ?? open();
    else close(), listeners.connected?.(false); // what changes meanwhile is not told: the view asks anew
  };
  document.addEventListener("visibilitychange", turn);
  turn();
  return () => (document.removeEventListener("visibilitychange", turn), close());
}
