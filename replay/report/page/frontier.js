// Every policy as a point: what it cost against what it attained. Up and to the left is better.

const MOST_LABELLED = 28; // letters
const EDGE = { left: GUTTER, right: 14, top: 36, bottom: 40 };
const POINT_KINDS = [
  ["main", "this policy"],
  ["leading", "on the front: no other is cheaper and as good"],
  ["beaten", "another is cheaper and better"],
  ["bound", "oracle, which knows the future"],
];

// The last percents are where policies differ, so the axis stretches them: 90 % is a third of the way up,
// 99 % two thirds. The thousandth keeps 100 % on it.
const nines = (share) => -Math.log10(1 - Math.min(Math.max(share, 0), 1) + 0.001);

function frontier(root, data) {
  const rows = data.rows.filter((row) => known(row.gpu_seconds) && known(row.attainment));
  if (!rows.some((row) => row.gpu_seconds > 0)) return root.append(notice("No policy cost anything: there is nothing to compare."));
  const oracle = data.results[data.main].oracle_gpu_seconds;
  const shown = { ratio: Boolean(oracle), nines: true };
  const picture = h("div", { class: "chart-plain" });
  const draw = (width) => picture.replaceChildren(frontierChart(width, rows, data, oracle, shown));
  const choose = (name, label, ...options) => {
    const chosen = (value) => {
      shown[name] = value === "true";
      draw(Math.floor(picture.clientWidth));
    };
    return h("label", {}, `${label} `, choice(label, [[true, options[0]], [false, options[1]]], shown[name], chosen));
  };
  const dot = (kind) => s("svg", { class: "dot", viewBox: "-9 -9 18 18", "aria-hidden": "true" }, s("g", { class: `point ${kind}` }, pointShape(kind)));
  root.append(
    h("div", { class: "controls" }, oracle ? choose("ratio", "cost as", "ratio to the oracle", "GPU-seconds") : null, choose("nines", "attainment", "by nines", "linear")),
    h("p", { class: "keys" }, POINT_KINDS.map(([kind, name]) => key(dot(kind), name))), picture, comparison(data),
  );
  drawnToWidth(picture, draw);
}

function frontierChart(width, rows, data, oracle, shown) {
  const height = Math.max(300, Math.min(430, Math.round(width * 0.42)));
  const [right, bottom] = [width - EDGE.right, height - EDGE.bottom];
  const cost = (row) => (shown.ratio ? row.gpu_seconds / oracle : row.gpu_seconds);
  const ticks = ticksTo(Math.max(...rows.map(cost)) * 1.06, Math.max(3, width / 130));
  const x = linear(0, ticks.at(-1), EDGE.left, right);
  const by = shown.nines ? nines : (share) => share;
  const up = linear(by(0), by(1), bottom, EDGE.top);
  const y = (share) => up(by(share));
  const list = rows.map((row) => `${row.policy}: ${whole(row.gpu_seconds)} GPU-seconds, ${percent(row.attainment)}`).join("; ");
  const svg = drawing(width, height, { class: "frontier", role: "img", "aria-label": `Cost against attainment. ${list}` });

  for (const share of shown.nines ? [0, 0.5, 0.9, 0.95, 0.99, 0.999, 1] : [0, 0.2, 0.4, 0.6, 0.8, 1]) gridLine(svg, { width: right }, y(share), `${digits(100 * share)} %`);
  for (const tick of ticks) gridColumn(svg, x(tick), EDGE.top, bottom, shown.ratio ? `${digits(tick)}×` : compact(tick));
  svg.append(svgText(right, height - 6, `${shown.ratio ? "GPU-seconds over the oracle's" : "GPU-seconds"} →`, { class: "axis-title", "text-anchor": "end" }));
  svg.append(svgText(EDGE.left, 10, "↑ share of requests in minutes that met the targets", { class: "axis-title" }));

  const goal = Math.round(y(data.goal)) + 0.5;
  svg.append(path("goal", `M${EDGE.left} ${goal}H${right}`));
  svg.append(svgText(right - 4, goal - 5, `goal ${digits(100 * data.goal)} %`, { class: "goal-name", "text-anchor": "end" }));
  if (oracle) svg.append(path("oracle", `M${pixel(x(shown.ratio ? 1 : oracle))} ${EDGE.top}V${bottom}`));

  const points = rows.map((row) => ({ row, x: x(cost(row)), y: y(row.attainment) })).sort((a, b) => b.row.main - a.row.main);
  const front = points.filter(({ row }) => row.on_front).sort((a, b) => a.x - b.x);
  const steps = front.map((point, index) => `${index ? "H" : "M"}${pixel(point.x)}${index ? "V" : " "}${pixel(point.y)}`);
  if (front.length) svg.append(path("front", `${steps.join("")}H${right}`));
  // The goal, its name and the steps of the front, so that no name is written across them.
  const lines = [
    { left: right - 60, right: width, top: goal - 16, bottom: goal }, { left: EDGE.left, right: width, top: goal, bottom: goal },
    ...front.flatMap((point, index) => {
      const next = front[index + 1] ?? { x: width, y: point.y };
      return [{ left: point.x, right: next.x, top: point.y, bottom: point.y }, { left: next.x, right: next.x, top: next.y, bottom: point.y }];
    }),
  ];
  const room = { left: EDGE.left, right: width - 2, top: 13, bottom };
  for (const { row, text, at, anchor, leader } of labelled(points, lines, room)) {
    if (leader) svg.append(path("leader", leader));
    svg.append(svgText(pixel(at.x), pixel(at.y), text, { class: `point-name${row.main ? " main" : ""}`, "text-anchor": anchor }));
  }
  svg.append(...points.reverse().map((point) => pointMark(point, data)));
  return svg;
}

function pointShape(kind) {
  const star = "M0-9L2.600-2.800L9-2.500L4 1.700L5.600 8L0 4.500L-5.600 8L-4 1.700L-9-2.500L-2.600-2.800Z";
  const d = { main: star, bound: "M0-6L6 0L0 6L-6 0Z" }[kind];
  return d ? s("path", { d }) : s("circle", { r: 5 });
}

function pointMark({ row, x, y }, data) {
  const kind = row.policy === data.oracle ? "bound" : row.main ? "main" : row.on_front ? "leading" : "beaten";
  const ratio = known(row.oracle_ratio) ? [`${times(row.oracle_ratio)} the oracle's`] : [];
  const details = [row.policy, `${whole(row.gpu_seconds)} GPU-seconds`, ...ratio, `${percent(row.attainment)} attained`, `${percent(row.ttft_ok)} of TTFTs in time`];
  const attributes = { class: `point ${kind}`, transform: `translate(${pixel(x)} ${pixel(y)})`, tabindex: 0, role: "img", "aria-label": details.join(", ") };
  return s("g", attributes, s("title", {}, details.join("\n")), pointShape(kind));
}

// Places a name beside each point where it covers neither a point nor a line nor another name. A point without a place keeps
// its figures in the table, and in the mark's own text.
function labelled(points, lines, room) {
  const taken = [...lines, ...points.map(({ x, y }) => ({ left: x - 8, right: x + 8, top: y - 8, bottom: y + 8 }))];
  const clear = (box) =>
    box.left > room.left && box.right < room.right && box.top > room.top && box.bottom < room.bottom &&
    taken.every((other) => box.right < other.left || box.left > other.right || box.bottom < other.top || box.top > other.bottom);
  return points.flatMap((point) => {
    const text = shortened(point.row.policy, MOST_LABELLED);
    const long = text.length * (point.row.main ? 7.6 : 6.7);
    for (const away of [0, 16, 32, 48, 64, 80]) {
      for (const [dx, dy] of [[1, 0], [0, -1], [0, 1], [-1, 0], [1, -1], [1, 1], [-1, -1], [-1, 1]]) {
        const x = point.x + dx * (11 + away * 0.5);
        const y = point.y + dy * (13 + away) + 4;
        const left = dx > 0 ? x : dx < 0 ? x - long : x - long / 2;
        const box = { left, right: left + long, top: y - 11, bottom: y + 3 };
        if (!clear(box)) continue;
        taken.push(box);
        const leader = away ? `M${pixel(point.x)} ${pixel(point.y)}L${pixel(x)} ${pixel(dy < 0 ? y + 3 : dy > 0 ? y - 10 : y - 4)}` : null;
        return [{ row: point.row, text, at: { x, y }, anchor: dx > 0 ? "start" : dx < 0 ? "end" : "middle", leader }];
      }
    }
    return [];
  });
}
