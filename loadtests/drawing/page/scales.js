// From values to pixels: scales, ticks, axes, and paths of steps.

const GUTTER = 50; // pixels left of the axis, for its numbers
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

function linear(low, high, from, to) {
  const factor = high > low ? (to - from) / (high - low) : 0;
  const scale = (value) => from + (value - low) * factor;
  scale.invert = (pixel) => (factor ? low + (pixel - from) / factor : low);
  return scale;
}

// What lies beyond the ends is drawn at them.
function logarithmic(low, high, from, to) {
  const scale = linear(Math.log10(low), Math.log10(high), from, to);
  return Object.assign((value) => scale(Math.log10(Math.min(Math.max(value, low), high))), { low, high });
}

// Round values from 0 up to the first that is not below `most`, about `count` of them, at least `least` apart.
function ticksTo(most, count, least = 0) {
  const rough = Math.max(most, 1e-9) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999), least);
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, index) => index * step);
}

const pixel = (value) => Math.round(value * 10) / 10;
const middleOf = (value) => Math.round(value) + 0.5; // of a pixel, where a line of one pixel is sharp

function gridLine(svg, view, y, words) {
  svg.append(path("grid", `M${GUTTER} ${middleOf(y)}H${view.width}`));
  svg.append(svgText("tick", GUTTER - 7, Math.max(y + 4, 10), words, "end"));
}

// A line down to the axis below, and words around its foot, or up to `end`.
function gridColumn(svg, x, top, bottom, words, end = null) {
  svg.append(path("grid", `M${middleOf(x)} ${top}V${bottom}`));
  svg.append(svgText("tick", end ?? middleOf(x), bottom + 17, words, end ? "end" : "middle"));
}

// The axis of time, below the panels.
function timeAxis(view) {
  const svg = drawing(view.width, 22, decorative);
  const rough = (view.to - view.from) / Math.max(1, view.width / 90);
  const step = STEPS_S.find((each) => each >= rough) ?? 86400 * Math.ceil(rough / 86400);
  for (let tick = Math.ceil(view.from / step) * step; tick <= view.to; tick += step) {
    const x = middleOf(view.x(tick));
    const anchor = x > view.width - 24 ? "end" : "middle";
    svg.append(path("tick-mark", `M${x} 0V5`), svgText("tick", x, 18, clock(tick, step < 60), anchor));
  }
  return svg;
}

// The index of the last of `values`, which never fall, that is not above `value`; at least 0.
const lastUpTo = (values, value) => Math.max(0, values.findLastIndex((each) => each <= value));
const greatest = (values) => Math.max(0, ...values);

// The part of a track (times, and the end of the last value) between two times; each value holds until the next.
function spanOf({ at_s: times, end_s: end }, from, to) {
  const [first, last] = [lastUpTo(times, from), lastUpTo(times, to)];
  const at = (index) => Math.max(from, times[index]);
  const seen = (values) => values.slice(first, last + 1);
  return { first, last, at, seen, end: Math.max(Math.min(to, times[last + 1] ?? end), at(last)) };
}

// A line of steps. Only changes become part of the path, and a null leaves a gap.
function stepPath(span, values, x, y) {
  let d = "";
  let drawn = null;
  for (let index = span.first; index <= span.last; index += 1) {
    const height = values[index] === null ? null : pixel(y(values[index]));
    if (height === drawn) continue;
    const at = pixel(x(span.at(index)));
    if (drawn !== null) d += `H${at}`;
    if (height !== null) d += drawn === null ? `M${at} ${height}` : `V${height}`;
    drawn = height;
  }
  return drawn === null ? d : `${d}H${pixel(x(span.end))}`;
}

// The area between two lines of steps (or above zero, where `lower` is null) in boxes. With a `gap` between them, in
// pixels, there is one for each value, which stays visible.
function boxes(span, lower, upper, x, y, gap = 0) {
  const low = (index) => (lower ? lower[index] : 0);
  let d = "";
  for (let index = span.first; index <= span.last; index += 1) {
    const [bottom, top, left] = [low(index), upper[index], x(span.at(index))];
    if (bottom === null || top === null || bottom === top) continue;
    while (!gap && index < span.last && low(index + 1) === bottom && upper[index + 1] === top) index += 1;
    const end = x(index < span.last ? span.at(index + 1) : span.end);
    const right = gap ? Math.max(end - gap, left + 2) : end;
    d += `M${pixel(left)} ${pixel(y(bottom))}V${pixel(y(top))}H${pixel(right)}V${pixel(y(bottom))}Z`;
  }
  return d;
}
