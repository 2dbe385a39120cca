// Elements, of HTML and of SVG. Text only ever goes into text nodes, so that no name can become markup.

const SVG_NAMESPACE = document.getElementById("shapes").namespaceURI;
const PAPER = 700; // pixels: an A4 or Letter page between its margins

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const h = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
const s = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG_NAMESPACE, name), attributes, children);
const path = (kind, d, title = "") => s("path", { class: kind, d }, title && s("title", {}, title));
const svgText = (x, y, text, attributes = {}) => s("text", { x, y, ...attributes }, text);

// A drawing at its real size on the screen, which shrinks with the paper in print.
const drawing = (width, height, attributes = {}) => s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, ...attributes });

// Draws at once, again whenever the width changes, and for print. `draw` gets whole pixels.
function drawnToWidth(element, draw) {
  let drawn = 0;
  const to = (width) => {
    if (width > 0 && width !== drawn) draw((drawn = width));
  };
  const redraw = () => to(Math.floor(element.clientWidth));
  // In the next frame: drawing within the notice would change the sizes that it reports.
  new ResizeObserver(() => requestAnimationFrame(redraw)).observe(element);
  addEventListener("beforeprint", () => to(PAPER));
  addEventListener("afterprint", redraw);
  redraw();
}

const swatch = (kind) => h("i", { class: `swatch ${kind}`, "aria-hidden": "true" });
const key = (sign, name) => h("span", { class: "key" }, typeof sign === "string" ? swatch(sign) : sign, name);
const notice = (words) => h("p", { class: "notice" }, words);
const help = (words) => h("p", { class: "help" }, words);
const chip = (text, title = null) => (text ? h("span", { class: "chip", title }, text) : null);
const button = (name, title, onclick) => h("button", { type: "button", title, onclick }, name);

function choice(label, options, value, chosen) {
  const select = h("select", { "aria-label": label, onchange: () => chosen(select.value) }, options.map(([each, name]) => h("option", { value: String(each) }, name)));
  select.value = value;
  return select;
}

// Figures to be read at a glance; each is [label, value, note, tone].
function figures(root, all) {
  const card = ([label, value, note, tone = ""]) => h("div", { class: `figure ${tone}` }, h("dt", {}, label), h("dd", {}, h("b", {}, value), h("span", {}, note)));
  root.append(h("dl", {}, all.filter(Boolean).map(card)));
}

// A row of a table; a cell is its text, or [text, class].
function tableRow(name, cells, kind = null) {
  const cell = (each) => (Array.isArray(each) ? h("td", { class: `number ${each[1]}`.trim() }, each[0]) : h("td", { class: "number" }, each));
  return h("tr", { class: kind }, h("th", { scope: "row" }, name), cells.map(cell));
}

function table(caption, headings, rows) {
  const heads = headings.map((name, index) => h("th", { scope: "col", class: index ? "number" : null }, name));
  const body = [h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)];
  return h("div", { class: "scrolling", tabindex: 0, role: "region", "aria-label": caption }, h("table", { class: "figures" }, body));
}

// Names with their values.
function entries(pairs) {
  return h("dl", { class: "entries" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

// Puts a floating element beside `x`, on the side that has room for it.
function place(card, width, x, top) {
  const own = card.offsetWidth;
  const right = x + 14;
  const left = right + own <= width ? right : Math.max(0, Math.min(x - 14 - own, width - own));
  card.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}

// GPU-seconds by what the replicas were doing: one bar a row, all to one scale. A state is [kind, label]; a row is
// { name, total, parts }, its parts in the order of the states.

function costBars(states, rows) {
  const wide = 1000;
  const most = Math.max(...rows.map((row) => row.total));
  const bar = ({ name, total, parts }) => {
    let left = 0;
    const shares = parts.map((value) => percent(total ? value / total : 0));
    const drawn = parts.map((value, index) => {
      const [kind, label] = states[index];
      const long = (wide * value) / most;
      const title = s("title", {}, `${label}: ${whole(value)} GPU-seconds, ${shares[index]}`);
      left += long;
      return s("rect", { class: `part ${kind}`, x: pixel(left - long), width: Math.max(0, pixel(long - 2)), height: 22 }, title);
    });
    const label = `${name}: ${states.map(([, state], index) => `${state} ${shares[index]}`).join(", ")}`;
    const head = h("span", {}, h("b", {}, shortened(name, 40)), h("span", {}, whole(total)));
    return h("div", { class: "cost" }, head, s("svg", { viewBox: `0 0 ${wide} 22`, preserveAspectRatio: "none", height: 22, role: "img", "aria-label": label }, drawn));
  };
  return [h("p", { class: "keys" }, states.map(([kind, label]) => key(`fill ${kind}`, label))), h("div", { class: "bars" }, rows.map(bar))];
}
