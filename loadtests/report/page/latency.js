// Latencies: their words, their axis, and the bounds they have to keep.

const NEVER_LANE = 18; // pixels above a latency axis, for what never came
const BOUND_LABEL = 12; // pixels from one bound's name to the next
const REACH = 3; // times the largest value, or a third of the smallest: bounds farther off are named at the edge

const isNever = (value) => value === "never";
const latencyWords = (value) => (isNever(value) ? "never" : seconds(value));
const named = (name) => name.toUpperCase();

function tickWords(value) {
  if (value >= 3600) return `${digits(value / 3600, 3)}\u00a0h`;
  return value >= 1 ? `${digits(value, 4)}\u00a0s` : `${digits(1000 * value, 4)}\u00a0ms`;
}

// 1, 2 and 5 times each power of ten, of which the ends and the marks of a logarithmic axis are.
const LADDER = Array.from({ length: 20 }, (_, index) => index - 10).flatMap((power) => [1, 2, 5].map((step) => Number(`${step}e${power}`)));
const roundLog = (value, up) => (up ? LADDER.find((each) => each >= value * 0.9999) : LADDER.findLast((each) => each <= value * 1.0001));

// Marks of a logarithmic axis, as fine as `count` allows.
function logTicks(low, high, count) {
  const within = LADDER.filter((tick) => tick >= low * 0.9999 && tick <= high * 1.0001);
  if (within.length <= count) return within;
  const decades = within.filter((tick) => tick.toExponential().startsWith("1e"));
  if (decades.length < 2) return within.filter((_, index) => index % Math.ceil(within.length / count) === 0);
  return decades.filter((tick) => Math.round(Math.log10(tick)) % Math.ceil(decades.length / count) === 0);
}

// The least and the most of `values` and of the bounds near them: an axis that had to reach a bound of two minutes
// would leave a line to answers of 20 ms.
function reachOf(values, bounds) {
  const numbers = values.filter((value) => typeof value === "number" && value > 0);
  const ends = (all) => [all.reduce((a, b) => Math.min(a, b), Infinity), all.reduce((a, b) => Math.max(a, b), 0)];
  const [least, most] = ends(numbers);
  const all = [...numbers, ...bounds.filter((bound) => !numbers.length || (bound <= most * REACH && bound >= least / REACH))];
  return all.length ? ends(all) : [0.02, 0.5];
}

// A logarithmic axis that has room for all `values` and for the bounds near them, with a lane on top for what never came.
function latencyAxis(svg, view, height, values, bounds, count) {
  const [least, most] = reachOf(values, Object.values(bounds));
  const low = roundLog(least * 0.85, false);
  const high = Math.max(roundLog(most * 1.1, true), low * 10);
  const never = values.some(isNever);
  const scale = logarithmic(low, high, height - 1, never ? NEVER_LANE + 4 : 8);
  for (const tick of logTicks(low, high, count)) gridLine(svg, view, scale(tick), tickWords(tick));
  if (never) {
    svg.append(s("rect", { class: "never-lane", x: GUTTER, y: 0, width: view.width - GUTTER, height: NEVER_LANE - 4 }));
    svg.append(svgText(GUTTER - 7, 11, "never", { class: "tick never-name", "text-anchor": "end" }));
  }
  return Object.assign((value) => (isNever(value) ? (NEVER_LANE - 4) / 2 : scale(value)), { low, high });
}

// A dashed line for each bound, named in the margin on the right, where names that would meet move apart. An arrow
// behind the name says that the bound lies beyond the axis.
function drawBounds(svg, view, height, bounds, y) {
  let next = height - 1 + BOUND_LABEL;
  const labels = Object.entries(bounds)
    .sort(([, a], [, b]) => a - b)
    .map(([name, value]) => ({ name, value, label: (next = Math.min(y(value) + 4, next - BOUND_LABEL)) }));
  let before = 9 - BOUND_LABEL;
  for (const { name, value, label } of labels.reverse()) {
    before = Math.max(label, before + BOUND_LABEL);
    const title = `${named(name)} below ${seconds(value)}`;
    const beyond = value > y.high ? "↑" : value < y.low ? "↓" : "";
    if (!beyond) svg.append(path(`bound ${name}`, `M${GUTTER} ${pixel(y(value))}H${view.width}`, title));
    svg.append(s("text", { x: view.width + 5, y: before, class: "bound-name" }, `${named(name)}${beyond}`, beyond && s("title", {}, title)));
  }
}

// The bounds of a latency: those of warm requests where all have none.
function boundsOf({ bounds }, kind) {
  const ofWarm = kind === "ttft" && !Object.keys(bounds.ttft).length;
  return ofWarm ? { bounds: bounds.warm, words: "of warm requests " } : { bounds: bounds[kind], words: "" };
}

function boundKeys(bounds, words) {
  const told = Object.entries(bounds).map(([name, value]) => `${named(name)} < ${seconds(value)}`);
  return told.length ? [["bound", `bounds ${words}${told.join(", ")}`]] : [];
}

// Cumulative distributions: the share of requests, or of gaps, that were at most so slow. The axis of shares widens
// towards 100 %, where the percentiles are that bounds speak of.

const CURVES_HEIGHT = 250;
const SHARES = [0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999];
const tail = (share) => -Math.log10(1 - Math.min(share, 0.999999));

function distribution(root, curves, bounds, kind, empty) {
  if (!curves.length) return root.append(notice(empty));
  const words = (curve) => `${curve.name}, ${compact(curve.count)}${curve.never ? ` (${whole(curve.never)} never)` : ""}`;
  const title = h("span", {}, `share of ${kind === "ttft" ? "requests" : "gaps"} that were as fast, %`);
  const chart = h("div", { class: "chart-plain" });
  root.append(h("p", { class: "keys" }, title, curves.map((curve) => key(`curve ${kind} ${curve.name}`, words(curve)))), chart);
  const limits = Object.entries(bounds).flatMap(([name, set]) => Object.entries(set).map(([which, value]) => ({ name, which, value })));
  drawnToWidth(chart, (full) => chart.replaceChildren(drawCurves(full, curves, limits, kind)));
}

function drawCurves(full, curves, limits, kind) {
  const width = full - 12;
  const svg = drawing(full, CURVES_HEIGHT + 22, { role: "img", "aria-label": `Distribution of ${kind.toUpperCase()}` });
  const [least, greatestValue] = reachOf(curves.flatMap((curve) => curve.value_s), limits.map(({ value }) => value));
  const low = roundLog(least, false);
  const x = logarithmic(low, Math.max(roundLog(greatestValue, true), low * 2), GUTTER, width);
  const most = Math.min(Math.max(2.3, ...curves.map((curve) => tail(curve.share.at(-1) ?? 0))), 4.2);
  const y = linear(0, most, CURVES_HEIGHT - 1, 8);
  for (const share of SHARES) if (tail(share) <= most) gridLine(svg, { width }, y(tail(share)), digits(100 * share, 4));
  for (const tick of logTicks(x.low, x.high, Math.floor((width - GUTTER) / 58))) {
    gridColumn(svg, x(tick), 8, CURVES_HEIGHT, tickWords(tick), x(tick) > width - 20 ? { "text-anchor": "end", x: width + 8 } : {});
  }
  for (const curve of curves) {
    const shown = curve.value_s.filter((_, index) => tail(curve.share[index]) <= most);
    svg.append(path(`line curve ${kind} ${curve.name}`, shown.map((value, index) => `${index ? "L" : "M"}${pixel(x(value))} ${pixel(y(tail(curve.share[index])))}`).join("")));
  }
  const others = [];
  for (const { name, which, value } of limits) {
    const at = { left: x(value), top: y(tail(Number(which.slice(1)) / 100)), beyond: value > x.high ? " →" : value < x.low ? " ←" : "" };
    others.push(drawLimit(svg, at, `${name === "all" ? "" : `${name} `}${named(which)} < ${seconds(value)}`, width, others));
  }
  return svg;
}

// A curve that keeps its bound passes above this mark, on its left; so the words stand below it, or to its right, and
// lower if there are others. A bound beyond the axis has an arrow for a mark.
function drawLimit(svg, { left, top, beyond }, words, width, others) {
  const before = left > GUTTER + (width - GUTTER) * 0.55;
  const long = 6.4 * (words.length + beyond.length); // pixels, about
  const gap = beyond ? 0 : 8;
  const from = before ? left - gap - long : left + gap;
  let at = top + (before && !beyond ? 15 : 4);
  while (others.some((other) => Math.abs(other.at - at) < 12 && from < other.to && from + long > other.from)) at += 12;
  if (!beyond) svg.append(path("limit-dot", `M${pixel(left - 3)} ${pixel(top)}a3 3 0 1 0 6 0a3 3 0 1 0-6 0Z`, words));
  svg.append(svgText(before ? left - gap : left + gap, at, `${words}${beyond}`, { class: "limit-name", "text-anchor": before ? "end" : "start" }));
  return { at, from, to: from + long };
}
