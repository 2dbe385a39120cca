// Every request as a point: when it was due, and how long its first token took.

const POINTS_HEIGHT = 300;
const NEAR = 22; // pixels from the pointer to the point it tells of

// Shapes around 0, 0; what is not filled is drawn as a line.
const KINDS = [
  ["warm", "answered", "M-2.200 0a2.200 2.200 0 1 0 4.400 0a2.200 2.200 0 1 0-4.400 0Z"],
  ["cold-answered", "answered after a hold", "M0-4.200L4.200 0L0 4.200L-4.200 0Z"],
  ["left", "client left, as it was to", "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0Z"],
  ["rejected", "rejected", "M-3.500-3.500L3.500 3.500M3.500-3.500L-3.500 3.500"],
  ["failed", "failed", "M-3.200-3.200H3.200V3.200H-3.200Z"],
  ["broken", "broken", "M0-4L4 3.200H-4Z"],
  ["abandoned", "abandoned", "M0 4L4-3.200H-4Z"],
];

function kindOf(points, at) {
  const outcome = points.outcome[at];
  return outcome === "answered" ? (points.cold[at] ? "cold-answered" : "warm") : outcome;
}

function requests(root, data) {
  const { points } = data;
  const count = points.at_s.length;
  if (!count) {
    root.append(h("p", { class: "notice" }, "No request was sent."));
    return;
  }
  const { bounds, words } = boundsOf(data, "ttft");
  const kinds = points.at_s.map((_, at) => kindOf(points, at));
  const present = KINDS.filter(([name]) => kinds.includes(name));
  root.append(
    h(
      "p",
      { class: "keys" },
      ...present.map(([name, title, shape]) => h("span", { class: "key" }, s("svg", { class: "dot", viewBox: "-6 -6 12 12", "aria-hidden": "true" }, s("path", { class: `request ${name}`, d: shape })), title)),
      ...(Object.keys(bounds).length ? [h("span", { class: "key" }, swatch("bound"), `bounds ${words}${boundKeys(bounds)}`)] : []),
    ),
  );
  const card = h("div", { class: "floating values", hidden: true });
  const picture = h("div", { class: "picture" });
  const chart = h("div", { class: "chart-plain" }, picture, card);
  root.append(chart, h("p", { class: "help" }, `TTFT by intended time${count < points.of ? `: ${whole(count)} of ${whole(points.of)} requests, every extreme and up to 4,000 errors among them` : ""}.`));
  let places = [];
  drawnToWidth(chart, (full) => {
    const width = full - MARGIN;
    const x = linear(0, data.duration_s, GUTTER, width);
    const view = { width, x, from: 0, to: data.duration_s };
    const svg = drawing(full, POINTS_HEIGHT + 22, { role: "img", "aria-label": `TTFT of ${whole(count)} requests over time` });
    const y = axisLatency(svg, view, POINTS_HEIGHT, points.ttft_s, bounds, Math.floor(POINTS_HEIGHT / 26));
    drawBounds(svg, view, POINTS_HEIGHT, bounds, y);
    places = points.at_s.map((at, index) => [x(at), y(points.ttft_s[index] ?? y.low)]);
    for (const [name, , shape] of present) {
      svg.append(s("path", { class: `request ${name}`, d: placed(shape, places.filter((_, index) => kinds[index] === name)) }));
    }
    const axis = drawAxis(view);
    svg.append(s("g", { transform: `translate(0 ${POINTS_HEIGHT})` }, ...axis.childNodes));
    picture.replaceChildren(svg);
  });
  chart.addEventListener("pointermove", (event) => {
    const { left, top } = chart.getBoundingClientRect();
    const near = nearest(places, event.clientX - left, event.clientY - top);
    card.hidden = near === null;
    if (near === null) return;
    card.replaceChildren(requestCard(points, near));
    place(card, chart.clientWidth, places[near][0], places[near][1] + 12);
  });
  chart.addEventListener("pointerleave", () => (card.hidden = true));
}

// One path of a shape at many places: thousands of elements would make every redraw slow.
function placed(shape, places) {
  const commands = [...shape.matchAll(/([MLHVaZ])([^MLHVaZ]*)/g)].map(([, command, numbers]) => [command, (numbers.match(/-?\d*\.?\d+/g) ?? []).map(Number)]);
  const absolute = (command, [a, b], left, top) => {
    if (command === "H") return `H${pixel(left + a)}`;
    if (command === "V") return `V${pixel(top + a)}`;
    return `${command}${pixel(left + a)} ${pixel(top + b)}`;
  };
  const one = ([left, top]) => commands.map(([command, numbers]) => ("MLHV".includes(command) ? absolute(command, numbers, left, top) : `${command}${numbers.join(" ")}`)).join("");
  return places.map(one).join("");
}

function nearest(places, x, y) {
  let best = null;
  let least = NEAR * NEAR;
  places.forEach(([left, top], index) => {
    const away = (left - x) ** 2 + (top - y) ** 2;
    if (away < least) [least, best] = [away, index];
  });
  return best;
}

function requestCard(points, at) {
  const error = points.errors[at];
  const fact = (name, value) => h("tr", {}, h("td", {}, name), h("td", {}, value));
  return h(
    "div",
    {},
    h("b", {}, `request ${points.index[at]}: ${points.outcome[at]}`),
    h(
      "table",
      {},
      h(
        "tbody",
        {},
        fact("due at", clock(points.at_s[at])),
        fact("TTFT", latencyWords(points.ttft_s[at])),
        fact("ended after", seconds(points.ended_s[at] - points.at_s[at])),
        fact("pieces", whole(points.pieces[at])),
        fact("kind", shortened(points.kinds[points.kind[at]], 40)),
        ...(points.models.length > 1 ? [fact("model", shortened(points.models[points.model[at]], 40))] : []),
      ),
    ),
    error ? h("p", { class: "note" }, error) : null,
  );
}
