// Latencies: their words, their axis, and the bounds they have to keep.

const NEVER_LANE = 18; // pixels above a latency axis, for what never came
const BOUND_LABEL = 12; // pixels from one bound's name to the next

const isNever = (value) => value === "never";
const latencyWords = (value) => (isNever(value) ? "never" : seconds(value));
const finiteOnly = (values) => values.filter((value) => typeof value === "number");
const named = (name) => name.toUpperCase();

function tickWords(value) {
  if (value >= 3600) return `${digits(value / 3600, 3)}\u00a0h`;
  return value >= 1 ? `${digits(value, 4)}\u00a0s` : `${digits(1000 * value, 4)}\u00a0ms`;
}

const STEPS_OF_TEN = [1, 2, 5, 10];

// The nearest of 1, 2, 5 times a power of ten that is not above, or not below.
function roundLog(value, up) {
  const power = 10 ** Math.floor(Math.log10(value) + 1e-9);
  const share = value / power;
  const step = up ? STEPS_OF_TEN.find((each) => each >= share * 0.9999) : STEPS_OF_TEN.findLast((each) => each <= share * 1.0001);
  return Number((power * step).toPrecision(6));
}

// Marks of a logarithmic axis, as fine as `count` allows.
function logTicks(low, high, count) {
  const all = [];
  for (let power = Math.floor(Math.log10(low) + 1e-9); 10 ** power <= high * 1.0001; power += 1) {
    for (const step of [1, 2, 5]) {
      const tick = Number((step * 10 ** power).toPrecision(6));
      if (tick >= low * 0.9999 && tick <= high * 1.0001) all.push({ tick, step, power });
    }
  }
  const ticks = (kept) => kept.map(({ tick }) => tick);
  if (all.length <= count) return ticks(all);
  const decades = all.filter(({ step }) => step === 1);
  if (decades.length < 2) return ticks(all.filter((_, index) => index % Math.ceil(all.length / count) === 0));
  const every = Math.ceil(decades.length / count);
  return ticks(decades.filter(({ power }) => power % every === 0));
}

// A logarithmic axis that has room for all `values`, with a lane on top for what never came.
function axisLatency(svg, view, height, values, count) {
  const numbers = finiteOnly(values).filter((value) => value > 0);
  const least = numbers.reduce((a, b) => Math.min(a, b), Infinity);
  const most = numbers.reduce((a, b) => Math.max(a, b), 0);
  const low = roundLog(numbers.length ? least * 0.85 : 0.01, false);
  const high = Math.max(roundLog(numbers.length ? most * 1.1 : 1, true), low * 10);
  const top = NEVER_LANE + 4;
  const log = linear(Math.log10(low), Math.log10(high), height - 1, top);
  const never = values.some(isNever);
  for (const tick of logTicks(low, high, count)) gridLine(svg, view, log(Math.log10(tick)), tickWords(tick));
  if (never) {
    svg.append(s("rect", { class: "never-lane", x: GUTTER, y: 0, width: view.width - GUTTER, height: NEVER_LANE - 4 }));
    svg.append(svgText(GUTTER - 7, 11, "never", { class: "tick never-name", "text-anchor": "end" }));
  }
  const y = (value) => (isNever(value) ? (NEVER_LANE - 4) / 2 : log(Math.log10(Math.min(Math.max(value, low), high))));
  y.low = low;
  y.high = high;
  return y;
}

// A dashed line for each bound, named in the margin on the right; names that would meet move apart.
function drawBounds(svg, view, height, bounds, y) {
  const lines = Object.entries(bounds).filter(([, value]) => known(value) && value >= y.low && value <= y.high);
  let below = Infinity;
  const labels = lines
    .map(([name, value]) => ({ name, value, at: y(value) }))
    .sort((a, b) => b.at - a.at)
    .map((line) => {
      below = Math.min(line.at + 4, below - BOUND_LABEL, height - 1);
      return { ...line, label: below };
    });
  const lift = Math.max(0, ...labels.map((line) => 9 - line.label));
  for (const { name, value, at, label } of labels) {
    svg.append(
      s("path", { class: `bound ${name}`, d: `M${GUTTER} ${pixel(at)}H${view.width}` }, s("title", {}, `${named(name)} below ${seconds(value)}`)),
      svgText(view.width + 5, label + lift, named(name), { class: "bound-name" }),
    );
  }
}

// What bounds a latency panel: those of warm requests where all have none.
function boundsOf(data, kind) {
  const own = data.bounds[kind];
  const ofWarm = kind === "ttft" && !Object.keys(own).length;
  return ofWarm ? { bounds: data.bounds.warm, words: "of warm requests " } : { bounds: own, words: "" };
}

const boundKeys = (bounds) => Object.entries(bounds).map(([name, value]) => `${named(name)} < ${seconds(value)}`).join(", ");
