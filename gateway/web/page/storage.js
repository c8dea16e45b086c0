// localStorage that may be full, or forbidden: then things are kept for as long as the page is open.

const kept = new Map();

export function load(key, fallback) {
  if (kept.has(key)) return kept.get(key);
  try {
    const text = localStorage.getItem(key);
    return text === null ? fallback : JSON.parse(text);
  } catch {
    return fallback;
  }
}

/** False when the browser refused. */
export function save(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
    kept.delete(key);
    return true;
  } catch {
    kept.set(key, value);
    return false;
  }
}

export function remove(key) {
  kept.delete(key);
  try {
    localStorage.removeItem(key);
  } catch {
    // nothing was kept then
  }
}
