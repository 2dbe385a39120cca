// Elements, of HTML and of SVG. Text only ever goes into text nodes, so that no name can become markup.

const SVG_NAMESPACE = document.getElementById("shapes").namespaceURI;

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const h = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);

const s = (name, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG_NAMESPACE, name), attributes, children);

// A drawing at its real size on the screen, which shrinks with the paper in print.
function drawing(width, height, attributes = {}) {
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, ...attributes });
}

function svgText(x, y, text, attributes = {}) {
  return s("text", { x, y, ...attributes }, text);
}

function swatch(kind) {
  return h("i", { class: `swatch ${kind}`, "aria-hidden": "true" });
}

const PAPER = 700; // pixels: an A4 or Letter page between its margins

// Draws at once, again whenever the width changes, and for print. `draw` gets whole pixels.
function drawnToWidth(element, draw) {
  let drawn = 0;
  const to = (width) => {
    if (width > 0 && width !== drawn) draw((drawn = width));
  };
  const redraw = () => to(Math.floor(element.clientWidth));
  // In the next frame: drawing within the notice would change sizes that are being told.
  new ResizeObserver(() => requestAnimationFrame(redraw)).observe(element);
  addEventListener("beforeprint", () => to(PAPER));
  addEventListener("afterprint", redraw);
  redraw();
}
