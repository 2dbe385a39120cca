// Elements, of HTML and of SVG. Text only ever goes into text nodes, so that no name can become markup.

const PAPER = 700; // pixels: an A4 or Letter page between its margins

function setAll(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value; // a policy may forbid the attribute
    else element.setAttribute(name, value === true ? "" : value);
  }
}

// Makes an element from its name with its classes, as in `p.help`, its attributes, if it has any, and its children.
const maker = (namespace) => (kind, ...content) => {
  const [name, ...classes] = kind.split(".");
  const element = document.createElementNS(namespace, name);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  if (content[0]?.constructor === Object) setAll(element, content.shift());
  element.append(...content.flat().filter((child) => child || child === 0));
  return element;
};
const h = maker(document.documentElement.namespaceURI);
const s = maker(document.getElementById("shapes").namespaceURI);

const titled = (words) => s("title", words);
const path = (kind, d, title) => s("path", { class: kind, d }, title && titled(title));
const svgText = (kind, x, y, words, anchor = null) => s("text", { x, y, class: kind, "text-anchor": anchor }, words);
const image = (words) => ({ role: "img", "aria-label": words });
const decorative = { "aria-hidden": "true" };
const dot = (reach, shape) => s("svg.dot", { viewBox: `-${reach} -${reach} ${2 * reach} ${2 * reach}`, ...decorative }, shape);

// A drawing at its real size on the screen, which shrinks with the paper in print.
const drawing = (width, height, attributes) => s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, ...attributes });

// Draws at once, again whenever the width changes, for print, and when what is returned is called. `draw` gets whole pixels.
function drawnToWidth(element, draw) {
  let drawn = 0;
  const widthNow = () => Math.floor(element.clientWidth);
  const to = (width) => {
    if (width > 0 && width !== drawn) draw((drawn = width));
  };
  const redraw = () => to(widthNow());
  // In the next frame: drawing within the notice would change the sizes that it reports.
  new ResizeObserver(() => requestAnimationFrame(redraw)).observe(element);
  addEventListener("beforeprint", () => to(PAPER));
  addEventListener("afterprint", redraw);
  redraw();
  return () => draw(widthNow());
}

// A drawing between its keys and what stands below it. `draw` returns what is drawn; so does what this returns again.
function plainChart(root, keys, draw, ...below) {
  const chart = h("div.chart-plain");
  root.append(h("p.keys", keys), chart, ...below);
  return [chart, drawnToWidth(chart, (width) => chart.replaceChildren(...draw(width)))];
}

const swatch = (kind) => h("i", { class: `swatch ${kind}`, ...decorative });
const key = (sign, name) => h("span.key", typeof sign === "string" ? swatch(sign) : sign, name);
const notice = (words) => h("p.notice", words);
const help = (words) => h("p.help", words);
const chip = (text, title = null) => text && h("span.chip", { title }, text);
const button = (name, title, onclick) => h("button", { type: "button", title, onclick }, name);

function choice(label, options, value, chosen) {
  const all = options.map(([each, name]) => h("option", { value: String(each) }, name));
  const select = h("select", { "aria-label": label, onchange: () => chosen(select.value) }, all);
  select.value = value;
  return select;
}

// Figures to be read at a glance; each is [label, value, note, tone].
function figures(root, all) {
  const card = ([label, value, note, tone = ""]) => h("div", { class: `figure ${tone}` }, h("dt", label), h("dd", h("b", value), h("span", note)));
  root.append(h("dl", all.filter(Boolean).map(card)));
}

// A row of a table; a cell is its text, or [text, class].
function tableRow(name, cells, kind = null) {
  const cell = ([text, tone = ""]) => h("td", { class: `number ${tone}`.trim() }, text);
  return h("tr", { class: kind }, h("th", { scope: "row" }, name), cells.map((each) => cell([each].flat())));
}

function table(caption, headings, rows) {
  const heads = headings.map((name, index) => h("th", { scope: "col", class: index ? "number" : null }, name));
  const body = [h("caption.unseen", caption), h("thead", h("tr", heads)), h("tbody", rows)];
  return h("div.scrolling", { tabindex: 0, role: "region", "aria-label": caption }, h("table.figures", body));
}

// Names with their values.
const entries = (pairs) => h("dl.entries", pairs.map(([name, value]) => h("div", h("dt", name), h("dd", value))));

// Shows a floating card beside `x`, on the side that has room for it.
function float(card, content, width, x, top) {
  card.replaceChildren(content);
  card.hidden = false;
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
    const shown = parts.map((value, index) => [...states[index], value, percent(total ? value / total : 0)]);
    let right = 0;
    const drawn = shown.map(([kind, label, value, share]) => {
      const [x, width] = [pixel(right), Math.max(0, pixel((wide * value) / most - 2))];
      right += (wide * value) / most;
      return s("rect", { class: `part ${kind}`, x, width, height: 22 }, titled(`${label}: ${whole(value)} GPU-seconds, ${share}`));
    });
    const words = `${name}: ${shown.map(([, label, , share]) => `${label} ${share}`).join(", ")}`;
    const svg = s("svg", { viewBox: `0 0 ${wide} 22`, preserveAspectRatio: "none", height: 22, ...image(words) }, drawn);
    return h("div.cost", h("span", h("b", shortened(name, 40)), h("span", whole(total))), svg);
  };
  return [h("p.keys", states.map(([kind, label]) => key(`fill ${kind}`, label))), h("div.bars", rows.map(bar))];
}
