// Every request as a point: when it was due, and how long its first token took.

const POINTS_HEIGHT = 300;
const NEAR = 22; // pixels from the pointer to the point it tells of

// Shapes around 0, 0; what is not filled is drawn as a line.
const KINDS = [
  ["warm", "answered", "M-2.200 0a2.200 2.200 0 1 0 4.400 0a2.200 2.200 0 1 0-4.400 0Z"],
  ["cold-answered", "answered after a hold", "M0-4.200l4.200 4.200l-4.200 4.200l-4.200-4.200Z"],
  ["left", "client left, as planned", "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0Z"],
  ["rejected", "rejected", "M-3.500-3.500l7 7m0-7l-7 7"],
  ["failed", "failed", "M-3.200-3.200h6.400v6.400h-6.400Z"],
  ["broken", "broken", "M0-4l4 7.200h-8Z"],
  ["abandoned", "abandoned", "M0 4l4-7.200h-8Z"],
];

// One path of a shape at many points: thousands of elements would make every redraw slow. Only its first command is absolute.
function placed(shape, places) {
  const [, left, top, rest] = shape.match(/^M(-?[\d.]+) ?(-?[\d.]+)(.*)$/);
  return places.map(([x, y]) => `M${pixel(x + Number(left))} ${pixel(y + Number(top))}${rest}`).join("");
}

function requests(root, data) {
  const { points } = data;
  const count = points.at_s.length;
  if (!count) return root.append(notice("No request was sent."));
  const { bounds, words } = boundsOf(data, "ttft");
  const kinds = points.outcome.map((outcome, at) => (outcome === "answered" ? (points.cold[at] ? "cold-answered" : "warm") : outcome));
  const present = KINDS.filter(([name]) => kinds.includes(name));
  const dot = (name, shape) => s("svg", { class: "dot", viewBox: "-6 -6 12 12", "aria-hidden": "true" }, path(`request ${name}`, shape));
  const card = h("div", { class: "floating values", hidden: true });
  const picture = h("div");
  const chart = h("div", { class: "chart-plain" }, picture, card);
  const part = count < points.of ? `: ${whole(count)} of ${whole(points.of)} requests, with every extreme and up to 4,000 errors among them` : "";
  root.append(
    h("p", { class: "keys" }, present.map(([name, title, shape]) => key(dot(name, shape), title)), boundKeys(bounds, words).map((each) => key(...each))),
    chart, help(`TTFT by intended time${part}.`),
  );
  let places = [];
  drawnToWidth(chart, (full) => {
    const view = viewOf({ from: 0, to: data.duration_s }, full);
    const svg = drawing(full, POINTS_HEIGHT + 22, { role: "img", "aria-label": `TTFT of ${whole(count)} requests over time` });
    const y = latencyAxis(svg, view, POINTS_HEIGHT, points.ttft_s, bounds, Math.floor(POINTS_HEIGHT / 26));
    drawBounds(svg, view, POINTS_HEIGHT, bounds, y);
    places = points.at_s.map((at, index) => [view.x(at), y(points.ttft_s[index] ?? y.low)]);
    for (const [name, , shape] of present) svg.append(path(`request ${name}`, placed(shape, places.filter((_, index) => kinds[index] === name))));
    svg.append(s("g", { transform: `translate(0 ${POINTS_HEIGHT})` }, [...timeAxis(view).childNodes]));
    picture.replaceChildren(svg);
  });
  chart.addEventListener("pointermove", (event) => {
    const { left, top } = chart.getBoundingClientRect();
    const away = places.map(([x, y]) => Math.hypot(x + left - event.clientX, y + top - event.clientY));
    const near = away.reduce((best, each, index) => (each < away[best] ? index : best), 0);
    card.hidden = away[near] >= NEAR;
    if (card.hidden) return;
    card.replaceChildren(requestCard(points, near));
    place(card, chart.clientWidth, places[near][0], places[near][1] + 12);
  });
  chart.addEventListener("pointerleave", () => (card.hidden = true));
}

function requestCard(points, at) {
  const facts = [
    ["due at", clock(points.at_s[at])],
    ["TTFT", latencyWords(points.ttft_s[at])],
    ["ended after", seconds(points.ended_s[at] - points.at_s[at])],
    ["pieces", whole(points.pieces[at])],
    ["kind", shortened(points.kinds[points.kind[at]], 40)],
    ...(points.models.length > 1 ? [["model", shortened(points.models[points.model[at]], 40)]] : []),
  ];
  const note = points.errors[at] ? h("p", { class: "note" }, points.errors[at]) : null;
  return h("div", {}, h("b", {}, `request ${points.index[at]}: ${points.outcome[at]}`), h("table", {}, h("tbody", {}, facts.map(([name, value]) => reading("", name, value)))), note);
}
