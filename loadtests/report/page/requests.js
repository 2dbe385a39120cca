// Every request as a point: when it was due, and how long its first token took.

const POINTS_HEIGHT = 300;
const NEAR = 22; // pixels from the pointer to the point it tells of

// Shapes around 0, 0; what is not filled is drawn as a line.
const KINDS = [
  ["warm", "answered", "M-2.200 0a2.200 2.200 0 1 0 4.400 0a2.200 2.200 0 1 0-4.400 0Z"],
  ["cold-answered", "answered after a cold start", "M0-4.200l4.200 4.200l-4.200 4.200l-4.200-4.200Z"],
  ["left", "client left, as planned", "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0Z"],
  ["rejected", "rejected", "M-3.500-3.500l7 7m0-7l-7 7"],
  ["failed", "failed", "M-3.200-3.200h6.400v6.400h-6.400Z"],
  ["broken", "broken", "M0-4l4 7.200h-8Z"],
  ["abandoned", "abandoned", "M0 4l4-7.200h-8Z"],
];

// One path of a shape at many points: thousands of elements would make every redraw slow. Only its first command is
// absolute.
function placed(shape, places) {
  const [, left, top, rest] = shape.match(/^M(-?[\d.]+) ?(-?[\d.]+)(.*)$/);
  return places.map(([x, y]) => `M${pixel(x + Number(left))} ${pixel(y + Number(top))}${rest}`).join("");
}

function requests(root, data) {
  const { points } = data;
  const count = points.at_s.length;
  if (!count) return root.append(notice("No request was sent."));
  const { bounds, keys } = boundsOf(data, "ttft");
  const answered = (at) => (points.cold[at] ? "cold-answered" : "warm");
  const kinds = points.outcome.map((outcome, at) => (outcome === "answered" ? answered(at) : outcome));
  const present = KINDS.filter(([name]) => kinds.includes(name));
  const shapes = present.map(([name, title, shape]) => key(dot(6, path(`request ${name}`, shape)), title));
  const some = `${whole(count)} of ${whole(points.of)} requests, with every extreme and up to 4,000 errors among them`;
  const card = h("div.floating.values", { hidden: true });
  let places = [];
  const draw = (full) => {
    const view = viewOf({ from: 0, to: data.duration_s }, full);
    const svg = drawing(full, POINTS_HEIGHT + 22, image(`TTFT of ${whole(count)} requests over time`));
    const y = latencyAxis(svg, view, POINTS_HEIGHT, points.ttft_s, bounds, Math.floor(POINTS_HEIGHT / 26));
    drawBounds(svg, view, POINTS_HEIGHT, bounds, y);
    places = points.at_s.map((at, index) => [view.x(at), y(points.ttft_s[index] ?? y.low)]);
    for (const [name, , shape] of present) {
      svg.append(path(`request ${name}`, placed(shape, places.filter((_, index) => kinds[index] === name))));
    }
    svg.append(s("g", { transform: `translate(0 ${POINTS_HEIGHT})` }, [...timeAxis(view).childNodes]));
    return [h("div", svg), card];
  };
  const shown = help(`TTFT by intended time${count < points.of ? `: ${some}` : ""}.`);
  const [chart] = plainChart(root, [...shapes, ...keys.map((each) => key(...each))], draw, shown);
  chart.addEventListener("pointermove", (event) => {
    const { left, top } = chart.getBoundingClientRect();
    const away = places.map(([x, y]) => Math.hypot(x + left - event.clientX, y + top - event.clientY));
    const near = away.indexOf(Math.min(...away));
    card.hidden = away[near] >= NEAR;
    if (card.hidden) return;
    float(card, requestCard(points, near), chart.clientWidth, places[near][0], places[near][1] + 12);
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
    ["model", shortened(points.models[points.model[at]], 40)],
  ].slice(0, points.models.length > 1 ? 6 : 5);
  const rows = facts.map(([name, value]) => reading("", name, value));
  const head = h("b", `request ${points.index[at]}: ${points.outcome[at]}`);
  return h("div", head, h("table", h("tbody", rows)), points.errors[at] && h("p.note", points.errors[at]));
}
