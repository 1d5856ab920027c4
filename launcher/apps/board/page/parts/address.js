// What is chosen in a view, behind `?` in the page's address, so that a link shows it as it is: a value of JSON a key.

function query() {
  return new URLSearchParams(location.hash.split("?")[1] ?? "");
}

// The value of a key; undefined where the address has none that can be read.
export function inAddress(key) {
  try {
    return JSON.parse(query().get(key) ?? "");
  } catch {
    return undefined;
  }
}

// Writes a value; null takes it away. Nothing is loaded anew.
export function putInAddress(key, value) {
  const words = query();
  if (value === null || value === undefined || value === "") words.delete(key);
  else words.set(key, JSON.stringify(value));
  toPath(location.hash.split("?")[0] || "#/runs", words);
}

// Another place of the same view, with what is chosen.
export function toPath(path, words = query()) {
  history.replaceState(null, "", `${path}${words.size ? `?${words}` : ""}`);
}
