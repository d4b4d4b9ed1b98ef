// Numbers as people read them, and elements whose contents are text, never HTML.

const isNumber = value => typeof value === "number" && Number.isFinite(value);

function number(value, digits = 4) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(Math.min(digits - 1, 2));
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return size >= 1000 ? value.toLocaleString("en-US", { maximumFractionDigits: 1 })
    : String(Number(value.toPrecision(digits)));
}

function scaled(value, step, units, digits) {
  if (!isNumber(value)) return "–";
  let at = 0;
  let size = value;
  while (Math.abs(size) >= step && at < units.length - 1) { size /= step; ++at; }
  return Number(size.toPrecision(digits)) + units[at];
}

const count = value => scaled(value, 1000, ["", "k", "M", "G", "T", "P"], 3);
const bytes = value => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"], 3);
const drive = value => scaled(value, 1000, [" B", " kB", " MB", " GB", " TB", " PB"], 3);
const share = value => isNumber(value) ? (100 * value).toFixed(value < 0.1 ? 1 : 0) + "%" : "–";

function milliseconds(value) {
  if (!isNumber(value)) return "–";
  return value < 1000 ? Number(value.toPrecision(3)) + " ms" : Number((value / 1000).toPrecision(4)) + " s";
}

function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 60) return Number(seconds.toPrecision(3)) + " s";
  const all = Math.round(seconds);
  const [d, h, m, s] = [Math.floor(all / 86400), Math.floor(all / 3600) % 24, Math.floor(all / 60) % 60, all % 60];
  if (d > 0) return d >= 10 ? d.toLocaleString("en-US") + " d" : `${d} d ${h} h`;
  return h > 0 ? `${h} h ${m} min` : `${m} min ${s} s`;
}

// Shorter, for the ticks of an axis.
function hours(seconds) {
  const two = part => String(part).padStart(2, "0");
  const all = Math.round(seconds);
  if (all < 60) return Number(seconds.toPrecision(3)) + " s";
  if (all < 3600) return `${Math.floor(all / 60)}:${two(all % 60)}`;
  return all < 172800 ? `${Math.floor(all / 3600)}:${two(Math.floor(all / 60) % 60)} h` : Number((all / 86400).toPrecision(3)) + " d";
}

function clock(unix) {
  if (!isNumber(unix) || Math.abs(unix) > 8.64e12) return "–";
  const at = new Date(unix * 1000);
  const two = part => String(part).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
    `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

// make("td.n", {title: "..."}, "text", element, ...)
function make(kind, attributes, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "style") Object.assign(element.style, value);
    else if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children.flat())
    if (child !== null && child !== undefined)
      element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  return element;
}

// rows: cells as text, elements, or {text, kind} for a class.
function table(head, rows, classes = []) {
  const cell = (tag, it) => it && it.kind !== undefined ? make(`${tag}.${it.kind}`, { title: it.title }, it.text) : make(tag, null, it);
  return make("table", null,
    head ? make("thead", null, make("tr", null, head.map(it => cell("th", it)))) : null,
    make("tbody", null, rows.map((row, i) => make(classes[i] ? "tr." + classes[i] : "tr", null, row.map(it => cell("td", it))))));
}

// What one part of the page cannot show hides no other part.
function guarded(what, build) {
  try {
    return build();
  } catch (error) {
    console.error(what, error);
    return make("div.panel", null, make("span.quiet", null, `${what} cannot be shown: ${error.message}`));
  }
}

const right = (text, title) => ({ kind: "n", text, title });
