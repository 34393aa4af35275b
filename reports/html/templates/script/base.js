// What the other files share: the page's data, which runs are shown, words for numbers. Texts go in as text only.
const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs || [];
const shown = runs.map(() => true);
const watchers = []; // called when runs or percentile changed, the window or the theme
const changed = () => watchers.forEach((watcher) => watcher());
const all = (selector, within) => Array.from((within || document).querySelectorAll(selector));

// About three significant digits, with thousands separators, as the tables have them.
function short(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  const places = Number.isInteger(value) ? 0 : Math.min(Math.max(2 - Math.floor(Math.log10(size)), 0), 6);
  return value.toLocaleString("en-US", { maximumFractionDigits: places });
}

// A latency as people say it, by the rule of the tables: ms below ten seconds, then s, min, h.
function latency(ms) {
  if (ms === null || !Number.isFinite(ms)) return "–";
  const size = Math.abs(ms);
  const [unit, of] = size < 1e4 ? ["ms", 1] : size <= 6e5 ? ["s", 1e3] : size <= 108e5 ? ["min", 6e4] : ["h", 36e5];
  return `${short(size / of < 100 ? ms / of : Math.round(ms / of))} ${unit}`;
}

// A time of the run, with as many decimals as `span` seconds on the screen can show.
function clock(seconds, span) {
  const places = Math.min(Math.max(Math.ceil(3 - Math.log10(Math.max(span, 1e-6))), 0), 4);
  return `${seconds.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places })} s`;
}

// Index of the last of rising values that is not above x; -1 where all are.
function place(values, x) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle + 1; else high = middle;
  }
  return low - 1;
}

// From a first value and distances to values.
function summed(distances, unit) {
  let sum = 0;
  return distances.map((each) => (sum += each) * unit);
}

// An element of these properties and contents.
function made(name, properties, ...inside) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...inside);
  return element;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const tint = (run) => run.color.replace(/^var\(--(\w+)\)$/, (_, name) => ink(name)); // a canvas knows no variables
