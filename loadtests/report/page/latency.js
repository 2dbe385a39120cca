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
const POWERS = Array.from({ length: 20 }, (_, index) => index - 10);
const LADDER = POWERS.flatMap((power) => [1, 2, 5].map((step) => Number(`${step}e${power}`)));
const roundedDown = (value) => LADDER.findLast((each) => each <= value * 1.0001);
const roundedUp = (value) => LADDER.find((each) => each >= value * 0.9999);

// Marks of a logarithmic axis, as fine as `count` allows.
function logTicks({ low, high }, count) {
  const within = LADDER.filter((tick) => tick >= low * 0.9999 && tick <= high * 1.0001);
  if (within.length <= count) return within;
  const decades = within.filter((tick) => tick.toExponential().startsWith("1e"));
  if (decades.length < 2) return within.filter((_, index) => index % Math.ceil(within.length / count) === 0);
  return decades.filter((tick) => Math.round(Math.log10(tick)) % Math.ceil(decades.length / count) === 0);
}

// The least and the most of `values` and of the bounds near them: an axis that had to reach a bound of two minutes
// would leave a line to answers of 20 ms.
function reachOf(values, bounds) {
  const numbers = values.filter((value) => value > 0);
  const [least, most] = [Math.min(...numbers) / REACH, Math.max(...numbers) * REACH];
  const near = numbers.length ? bounds.filter((bound) => bound >= least && bound <= most) : bounds;
  const all = [...numbers, ...near];
  return all.length ? [Math.min(...all), Math.max(...all)] : [0.02, 0.5];
}

// An arrow for a value beyond the ends of an axis.
const beyondOf = (value, { low, high }, [below, above]) => (value > high ? above : value < low ? below : "");

// A logarithmic axis with room for all `values` and for the bounds near them, and a lane on top for what never came.
function latencyAxis(svg, view, height, values, bounds, count) {
  const [least, most] = reachOf(values, Object.values(bounds));
  const low = roundedDown(least * 0.85);
  const high = Math.max(roundedUp(most * 1.1), low * 10);
  const never = values.some(isNever);
  const scale = logarithmic(low, high, height - 1, never ? NEVER_LANE + 4 : 8);
  for (const tick of logTicks(scale, count)) gridLine(svg, view, scale(tick), tickWords(tick));
  if (never) {
    svg.append(s("rect.never-lane", { x: GUTTER, y: 0, width: view.width - GUTTER, height: NEVER_LANE - 4 }));
    svg.append(svgText("tick never-name", GUTTER - 7, 11, "never", "end"));
  }
  return Object.assign((value) => (isNever(value) ? (NEVER_LANE - 4) / 2 : scale(value)), { low, high });
}

// A dashed line for each bound, named in the margin on the right, where names that would meet move apart. An arrow
// behind the name says that the bound lies beyond the axis.
function drawBounds(svg, view, height, bounds, y) {
  let next = height - 1 + BOUND_LABEL;
  const rising = Object.entries(bounds).sort(([, a], [, b]) => a - b);
  const labels = rising.map(([name, value]) => [name, value, (next = Math.min(y(value) + 4, next - BOUND_LABEL))]);
  let before = 9 - BOUND_LABEL;
  for (const [name, value, at] of labels.reverse()) {
    before = Math.max(at, before + BOUND_LABEL);
    const words = `${named(name)} below ${seconds(value)}`;
    const beyond = beyondOf(value, y, ["↓", "↑"]);
    if (!beyond) svg.append(path(`bound ${name}`, `M${GUTTER} ${pixel(y(value))}H${view.width}`, words));
    const text = svgText("bound-name", view.width + 5, before, `${named(name)}${beyond}`);
    if (beyond) text.append(titled(words));
    svg.append(text);
  }
}

// The bounds of a latency, and their key: those of warm requests where all have none.
function boundsOf({ bounds: { warm, ...all } }, kind) {
  const ofWarm = kind === "ttft" && !Object.keys(all.ttft).length;
  const bounds = ofWarm ? warm : all[kind];
  const texts = Object.entries(bounds).map(([name, value]) => `${named(name)} < ${seconds(value)}`).join(", ");
  return { bounds, keys: texts ? [["bound", `bounds ${ofWarm ? "of warm requests " : ""}${texts}`]] : [] };
}

// Cumulative distributions: the share of requests, or of gaps, that were at most so slow. The axis of shares widens
// towards 100 %, where the percentiles are that bounds speak of.

const CURVES_HEIGHT = 250;
const SHARES = [0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999];
const tail = (share) => -Math.log10(1 - Math.min(share, 0.999999));

function firstTokens(root, { curves, bounds: { ttft, warm } }) {
  distribution(root, curves.ttft, { all: ttft, warm }, "ttft", "No request was sent.");
}

function gaps(root, { curves, bounds }) {
  distribution(root, curves.itl, { all: bounds.itl }, "itl", "No answer had two pieces.");
}

function distribution(root, curves, bounds, kind, empty) {
  if (!curves.length) return root.append(notice(empty));
  const words = ({ name, count, never }) => `${name}, ${compact(count)}${never ? ` (${whole(never)} never)` : ""}`;
  const keys = curves.map((curve) => key(`curve ${kind} ${curve.name}`, words(curve)));
  const title = h("span", `share of ${kind === "ttft" ? "requests" : "gaps"} that were as fast, %`);
  const limits = Object.entries(bounds).flatMap(([name, set]) => Object.entries(set).map(([which, value]) => ({ name, which, value })));
  plainChart(root, [title, ...keys], (full) => [drawCurves(full, curves, limits, kind)]);
}

function drawCurves(full, curves, limits, kind) {
  const width = full - 12;
  const svg = drawing(full, CURVES_HEIGHT + 22, image(`Distribution of ${named(kind)}`));
  const [least, greatestValue] = reachOf(curves.flatMap((curve) => curve.value_s), limits.map(({ value }) => value));
  const low = roundedDown(least);
  const x = logarithmic(low, Math.max(roundedUp(greatestValue), low * 2), GUTTER, width);
  const most = Math.min(Math.max(2.3, ...curves.map((curve) => tail(curve.share.at(-1) ?? 0))), 4.2);
  const y = linear(0, most, CURVES_HEIGHT - 1, 8);
  for (const share of SHARES) if (tail(share) <= most) gridLine(svg, { width }, y(tail(share)), digits(100 * share, 4));
  for (const tick of logTicks(x, Math.floor((width - GUTTER) / 58))) {
    gridColumn(svg, x(tick), 8, CURVES_HEIGHT, tickWords(tick), x(tick) > width - 20 ? width + 8 : null);
  }
  for (const { name, value_s: values, share } of curves) {
    const shown = values.filter((_, index) => tail(share[index]) <= most);
    const points = shown.map((value, index) => `${index ? "L" : "M"}${pixel(x(value))} ${pixel(y(tail(share[index])))}`);
    svg.append(path(`line curve ${kind} ${name}`, points.join("")));
  }
  const others = [];
  for (const { name, which, value } of limits) {
    const top = y(tail(Number(which.slice(1)) / 100));
    const words = `${name === "all" ? "" : `${name} `}${named(which)} < ${seconds(value)}`;
    others.push(drawLimit(svg, x(value), top, beyondOf(value, x, [" ←", " →"]), words, width, others));
  }
  return svg;
}

// A curve that keeps its bound passes above this mark, on its left; so the words stand below it, or to its right, and
// lower if there are others. A bound beyond the axis has an arrow for a mark.
function drawLimit(svg, left, top, beyond, words, width, others) {
  const before = left > GUTTER + (width - GUTTER) * 0.55;
  const long = 6.4 * (words.length + beyond.length); // pixels, about
  const gap = beyond ? 0 : 8;
  const start = before ? left - gap : left + gap;
  const from = before ? start - long : start;
  let at = top + (before && !beyond ? 15 : 4);
  while (others.some((other) => Math.abs(other.at - at) < 12 && from < other.to && from + long > other.from)) at += 12;
  if (!beyond) svg.append(path("limit-dot", `M${pixel(left - 3)} ${pixel(top)}a3 3 0 1 0 6 0a3 3 0 1 0-6 0Z`, words));
  svg.append(svgText("limit-name", start, at, `${words}${beyond}`, before ? "end" : "start"));
  return { at, from, to: from + long };
}
