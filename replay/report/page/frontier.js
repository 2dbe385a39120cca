// Every policy as a point: what it cost against what it attained. Up and to the left is better.

const MOST_LABELLED = 28; // letters

// The last percents are where policies differ, so the axis stretches them: 90 % is a third of the way up,
// 99 % two thirds. The thousandth keeps 100 % on it.
const nines = (share) => -Math.log10(1 - Math.min(Math.max(share, 0), 1) + 0.001);

function frontier(root, data) {
  const rows = data.rows.filter((row) => known(row.gpu_seconds) && known(row.attainment));
  if (!rows.some((row) => row.gpu_seconds > 0)) {
    root.append(h("p", { class: "notice" }, "No policy cost anything: there is nothing to compare."));
    return;
  }
  const oracle = data.results[data.main].oracle_gpu_seconds;
  const shown = { ratio: Boolean(oracle), nines: true };
  const picture = h("div", { class: "chart-plain" });
  const draw = (width) => picture.replaceChildren(frontierChart(width, rows, data, oracle, shown));
  const choice = (label, options, key) => {
    const select = h(
      "select",
      {
        onchange: (event) => {
          shown[key] = event.target.value === "1";
          draw(Math.floor(picture.clientWidth));
        },
      },
      ...options.map(([value, name]) => h("option", { value }, name)),
    );
    select.value = shown[key] ? "1" : "0";
    return h("label", {}, `${label} `, select);
  };
  root.append(
    h(
      "div",
      { class: "controls" },
      oracle ? choice("cost as", [["1", "ratio to the oracle"], ["0", "GPU-seconds"]], "ratio") : null,
      choice("attainment", [["1", "by nines"], ["0", "linear"]], "nines"),
    ),
    pointKeys(),
    picture,
    comparison(data),
  );
  drawnToWidth(picture, draw);
}

function frontierChart(width, rows, data, oracle, shown) {
  const height = Math.max(300, Math.min(430, Math.round(width * 0.42)));
  const edge = { left: 50, right: 14, top: 36, bottom: 40 };
  const cost = (row) => (shown.ratio ? row.gpu_seconds / oracle : row.gpu_seconds);
  const ticks = ticksTo(Math.max(...rows.map(cost)) * 1.06, Math.max(3, width / 130));
  const x = linear(0, ticks.at(-1), edge.left, width - edge.right);
  const by = shown.nines ? nines : (share) => share;
  const up = linear(by(0), by(1), height - edge.bottom, edge.top);
  const y = (share) => up(by(share));
  const list = rows.map((row) => `${row.policy}: ${whole(row.gpu_seconds)} GPU-seconds, ${percent(row.attainment)}`).join("; ");
  const svg = drawing(width, height, { class: "frontier", role: "img", "aria-label": `Cost against attainment. ${list}` });

  for (const share of shown.nines ? [0, 0.5, 0.9, 0.95, 0.99, 0.999, 1] : [0, 0.2, 0.4, 0.6, 0.8, 1]) {
    const at = Math.round(y(share)) + 0.5;
    svg.append(s("path", { class: "grid", d: `M${edge.left} ${at}H${width - edge.right}` }));
    svg.append(svgText(edge.left - 7, at + 4, `${digits(100 * share)} %`, { class: "tick", "text-anchor": "end" }));
  }
  for (const tick of ticks) {
    const at = Math.round(x(tick)) + 0.5;
    const label = shown.ratio ? `${digits(tick)}×` : compact(tick);
    svg.append(s("path", { class: "grid", d: `M${at} ${edge.top}V${height - edge.bottom}` }));
    svg.append(svgText(at, height - edge.bottom + 17, label, { class: "tick", "text-anchor": "middle" }));
  }
  const unit = shown.ratio ? "GPU-seconds over the oracle's" : "GPU-seconds";
  svg.append(svgText(width - edge.right, height - 6, `${unit} →`, { class: "axis-title", "text-anchor": "end" }));
  svg.append(svgText(edge.left, 10, "↑ share of requests in minutes that met the targets", { class: "axis-title" }));

  const goal = Math.round(y(data.goal)) + 0.5;
  svg.append(s("path", { class: "goal", d: `M${edge.left} ${goal}H${width - edge.right}` }));
  svg.append(svgText(width - edge.right - 4, goal - 5, `goal ${digits(100 * data.goal)} %`, { class: "goal-name", "text-anchor": "end" }));
  if (oracle) svg.append(s("path", { class: "oracle", d: `M${pixel(x(shown.ratio ? 1 : oracle))} ${edge.top}V${height - edge.bottom}` }));

  const front = rows.filter((row) => row.on_front).sort((a, b) => a.gpu_seconds - b.gpu_seconds);
  if (front.length) {
    const steps = front.map((row, index) => `${index ? "H" : "M"}${pixel(x(cost(row)))}${index ? "V" : " "}${pixel(y(row.attainment))}`);
    svg.append(s("path", { class: "front", d: `${steps.join("")}H${width - edge.right}` }));
  }
  const points = rows.map((row) => ({ row, x: x(cost(row)), y: y(row.attainment) })).sort((a, b) => b.row.main - a.row.main);
  const occupied = [
    { left: width - edge.right - 60, right: width, top: goal - 16, bottom: goal },
    { left: edge.left, right: width, top: goal, bottom: goal },
    ...front.flatMap((row, index) => frontBoxes(x(cost(row)), y(row.attainment), front[index + 1], width, (next) => [x(cost(next)), y(next.attainment)])),
  ];
  for (const { row, text, at, anchor, leader } of labelled(points, occupied, width, height, edge)) {
    if (leader) svg.append(s("path", { class: "leader", d: leader }));
    svg.append(svgText(pixel(at.x), pixel(at.y), text, { class: `point-name${row.main ? " main" : ""}`, "text-anchor": anchor }));
  }
  for (const point of [...points].reverse()) svg.append(pointMark(point, data));
  return svg;
}

// What the front covers from one of its points to the next, so that no name is written across it.
function frontBoxes(x, y, next, width, place) {
  if (!next) return [{ left: x, right: width, top: y, bottom: y }];
  const [right, top] = place(next);
  return [
    { left: x, right, top: y, bottom: y },
    { left: right, right, top, bottom: y },
  ];
}

const POINT_KINDS = [
  ["main", "this policy"],
  ["leading", "on the front: none is cheaper and as good"],
  ["beaten", "beaten on both"],
  ["bound", "oracle, which knows the future"],
];

function pointShape(kind) {
  const star = "M0-9L2.600-2.800L9-2.500L4 1.700L5.600 8L0 4.500L-5.600 8L-4 1.700L-9-2.500L-2.600-2.800Z";
  const path = { main: star, bound: "M0-6L6 0L0 6L-6 0Z" }[kind];
  return path ? s("path", { d: path }) : s("circle", { r: 5 });
}

function pointKeys() {
  const dot = (kind) => s("svg", { class: "dot", viewBox: "-9 -9 18 18", "aria-hidden": "true" }, s("g", { class: `point ${kind}` }, pointShape(kind)));
  return h("p", { class: "keys" }, ...POINT_KINDS.map(([kind, name]) => h("span", { class: "key" }, dot(kind), name)));
}

function pointMark({ row, x, y }, data) {
  const kind = row.policy === data.oracle ? "bound" : row.main ? "main" : row.on_front ? "leading" : "beaten";
  const details = [`${row.policy}`, `${whole(row.gpu_seconds)} GPU-seconds`, known(row.oracle_ratio) ? `${times(row.oracle_ratio)} the oracle's` : null, `${percent(row.attainment)} attained`, `${percent(row.ttft_ok)} of TTFTs in time`];
  const title = s("title", {}, details.filter(Boolean).join("\n"));
  return s("g", { class: `point ${kind}`, transform: `translate(${pixel(x)} ${pixel(y)})`, tabindex: 0, role: "img", "aria-label": details.filter(Boolean).join(", ") }, title, pointShape(kind));
}

// Places a name beside each point where it covers neither a point nor another name.
function labelled(points, occupied, width, height, edge) {
  const taken = [
    ...occupied,
    ...points.map((point) => ({ left: point.x - 8, right: point.x + 8, top: point.y - 8, bottom: point.y + 8 })),
  ];
  const clear = (box) =>
    box.left > edge.left && box.right < width - 2 && box.top > 13 && box.bottom < height - edge.bottom &&
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
    return []; // its figures are in the table, and in the mark's own text
  });
}
