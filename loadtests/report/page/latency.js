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
