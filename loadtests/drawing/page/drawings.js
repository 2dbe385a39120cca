// Elements of SVG, and drawings that follow the width of their place.

const PAPER = 700; // pixels: an A4 or Letter page between its margins

const s = maker(document.getElementById("shapes").namespaceURI);
const titled = (words) => s("title", words);
const path = (kind, d, title) => s("path", { class: kind, d }, title && titled(title));
const svgText = (kind, x, y, words, anchor = null) => s("text", { x, y, class: kind, "text-anchor": anchor }, words);
const image = (words) => ({ role: "img", "aria-label": words });
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
