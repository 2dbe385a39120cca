// Elements. Text only ever goes into text nodes, so that no name can become markup.

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

const decorative = { "aria-hidden": "true" };
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
