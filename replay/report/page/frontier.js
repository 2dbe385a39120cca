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
  const nothing = "No policy cost anything: there is nothing to compare.";
  if (!rows.some((row) => row.gpu_seconds > 0)) return root.append(notice(nothing));
  const oracle = data.results[data.main].oracle_gpu_seconds;
  const shown = { ratio: Boolean(oracle), nines: true };
  const choose = (name, label, ...options) => {
    const chosen = (value) => {
      shown[name] = value === "true";
      redraw();
    };
    const pairs = options.map((option, index) => [index === 0, option]);
    return h("label", `${label} `, choice(label, pairs, shown[name], chosen));
  };
  const cost = shown.ratio && choose("ratio", "cost as", "ratio to the oracle", "GPU-seconds");
  root.append(h("div.controls", cost, choose("nines", "attainment", "by nines", "linear")));
  const keys = POINT_KINDS.map(([kind, name]) => key(dot(9, s(`g.point.${kind}`, pointShape(kind))), name));
  const draw = (width) => [frontierChart(width, rows, data, oracle, shown)];
  const [, redraw] = plainChart(root, keys, draw, comparison(data));
}

function frontierChart(width, rows, data, oracle, shown) {
  const height = Math.max(300, Math.min(430, Math.round(width * 0.42)));
  const { left, top } = EDGE;
  const [right, bottom] = [width - EDGE.right, height - EDGE.bottom];
  const cost = (row) => (shown.ratio ? row.gpu_seconds / oracle : row.gpu_seconds);
  const ticks = ticksTo(Math.max(...rows.map(cost)) * 1.06, Math.max(3, width / 130));
  const x = linear(0, ticks.at(-1), left, right);
  const by = shown.nines ? nines : (share) => share;
  const up = linear(by(0), by(1), bottom, top);
  const y = (share) => up(by(share));
  const told = rows.map((row) => `${row.policy}: ${whole(row.gpu_seconds)} GPU-seconds, ${percent(row.attainment)}`);
  const svg = drawing(width, height, { class: "frontier", ...image(`Cost against attainment. ${told.join("; ")}`) });

  const shares = shown.nines ? [0, 0.5, 0.9, 0.95, 0.99, 0.999, 1] : [0, 0.2, 0.4, 0.6, 0.8, 1];
  for (const share of shares) gridLine(svg, { width: right }, y(share), `${digits(100 * share)} %`);
  for (const tick of ticks) gridColumn(svg, x(tick), top, bottom, shown.ratio ? `${digits(tick)}×` : compact(tick));
  const unit = shown.ratio ? "GPU-seconds over the oracle's" : "GPU-seconds";
  svg.append(svgText("axis-title", right, height - 6, `${unit} →`, "end"));
  svg.append(svgText("axis-title", left, 10, "↑ share of requests in minutes that met the targets"));

  const goal = middleOf(y(data.goal));
  svg.append(path("goal", `M${left} ${goal}H${right}`));
  svg.append(svgText("goal-name", right - 4, goal - 5, `goal ${digits(100 * data.goal)} %`, "end"));
  if (oracle) svg.append(path("oracle", `M${pixel(x(shown.ratio ? 1 : oracle))} ${top}V${bottom}`));

  const points = rows.map((row) => ({ row, x: x(cost(row)), y: y(row.attainment) })).sort((a, b) => b.row.main - a.row.main);
  const front = points.filter(({ row }) => row.on_front).sort((a, b) => a.x - b.x);
  const steps = front.map((point, index) => `${index ? "H" : "M"}${pixel(point.x)}${index ? "V" : " "}${pixel(point.y)}`);
  if (front.length) svg.append(path("front", `${steps.join("")}H${right}`));
  // The goal, its name and the steps of the front, so that no name is written across them.
  const level = (from, to, at) => ({ left: from, right: to, top: at, bottom: at });
  const lines = front.flatMap((point, index) => {
    const next = front[index + 1] ?? { x: width, y: point.y };
    return [level(point.x, next.x, point.y), { ...level(next.x, next.x, next.y), bottom: point.y }];
  });
  lines.push({ left: right - 60, right: width, top: goal - 16, bottom: goal }, level(left, width, goal));
  const room = { left, right: width - 2, top: 13, bottom };
  for (const { row, text, at, anchor, leader } of labelled(points, lines, room)) {
    if (leader) svg.append(path("leader", leader));
    svg.append(svgText(`point-name${row.main ? " main" : ""}`, pixel(at.x), pixel(at.y), text, anchor));
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
  const transform = `translate(${pixel(x)} ${pixel(y)})`;
  return s(`g.point.${kind}`, { transform, tabindex: 0, ...image(details.join(", ")) }, titled(details.join("\n")), pointShape(kind));
}

const STEPS_AWAY = [0, 16, 32, 48, 64, 80]; // pixels
const SIDES = [[1, 0], [0, -1], [0, 1], [-1, 0], [1, -1], [1, 1], [-1, -1], [-1, 1]];

// Places a name beside each point where it covers neither a point nor a line nor another name. A point without a place
// keeps its figures in the table, and in the mark's own text.
function labelled(points, lines, room) {
  const taken = [...lines, ...points.map(({ x, y }) => ({ left: x - 8, right: x + 8, top: y - 8, bottom: y + 8 }))];
  const apart = (one, two) => one.right < two.left || one.left > two.right || one.bottom < two.top || one.top > two.bottom;
  const clear = (box) =>
    box.left > room.left && box.right < room.right && box.top > room.top && box.bottom < room.bottom &&
    taken.every((other) => apart(box, other));
  return points.flatMap(({ row, ...point }) => {
    const text = shortened(row.policy, MOST_LABELLED);
    const long = text.length * (row.main ? 7.6 : 6.7);
    const found = STEPS_AWAY.flatMap((away) => SIDES.map(([dx, dy]) => {
      const x = point.x + dx * (11 + away * 0.5);
      const y = point.y + dy * (13 + away) + 4;
      const left = x - { 1: 0, 0: long / 2, [-1]: long }[dx];
      const foot = pixel({ 1: y - 10, 0: y - 4, [-1]: y + 3 }[dy]);
      return {
        row, text, at: { x, y }, anchor: { 1: "start", 0: "middle", [-1]: "end" }[dx],
        leader: away ? `M${pixel(point.x)} ${pixel(point.y)}L${pixel(x)} ${foot}` : null,
        box: { left, right: left + long, top: y - 11, bottom: y + 3 },
      };
    })).find(({ box }) => clear(box));
    if (!found) return [];
    taken.push(found.box);
    return [found];
  });
}
