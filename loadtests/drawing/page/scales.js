// From values to pixels: scales, ticks, and paths of steps.

function linear(low, high, from, to) {
  const factor = high > low ? (to - from) / (high - low) : 0;
  const scale = (value) => from + (value - low) * factor;
  scale.invert = (pixel) => (factor ? low + (pixel - from) / factor : low);
  return scale;
}

function niceStep(span, most) {
  const rough = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= rough * 0.999);
}

// Round values from 0 up to the first that is not below `most`.
function ticksTo(most, count, least = 0) {
  const step = Math.max(niceStep(Math.max(most, 1e-9), count), least);
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, index) => index * step);
}

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

function timeTicks(from, to, count) {
  const rough = (to - from) / Math.max(1, count);
  const step = TIME_STEPS.find((each) => each >= rough) ?? 86400 * Math.ceil(rough / 86400);
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) ticks.push(at);
  return { ticks, exact: step < 60 };
}

// The index of the last of `values`, which never fall, that is not above `value`; at least 0.
function lastUpTo(values, value) {
  let low = 0;
  let high = values.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= value) low = middle;
    else high = middle - 1;
  }
  return low;
}

const pixel = (value) => Math.round(value * 10) / 10;

// A line of steps: each value holds until the next one's time. Only changes become part of the path, and a
// null leaves a gap.
function stepPath(span, values, x, y) {
  let path = "";
  let drawn = null;
  for (let index = span.first; index <= span.last; index += 1) {
    const height = values[index] === null ? null : pixel(y(values[index]));
    if (height === drawn) continue;
    const at = pixel(x(span.at(index)));
    if (drawn !== null) path += `H${at}`;
    if (height !== null) path += drawn === null ? `M${at} ${height}` : `V${height}`;
    drawn = height;
  }
  return drawn === null ? path : `${path}H${pixel(x(span.end))}`;
}

// The area between two lines of steps.
function stepBand(span, lower, upper, x, y) {
  const lowest = (index) => pixel(y(lower === null ? 0 : lower[index]));
  let path = stepPath(span, upper, x, y);
  if (!path) return "";
  let right = pixel(x(span.end));
  for (let index = span.last; index >= span.first; index -= 1) {
    const height = lowest(index);
    path += `V${height}`;
    while (index > span.first && lowest(index - 1) === height) index -= 1;
    right = pixel(x(span.at(index)));
    path += `H${right}`;
  }
  return `${path}Z`;
}

const sums = (...arrays) => arrays[0].map((_, index) => arrays.reduce((sum, values) => sum + values[index], 0));

function greatest(values, first = 0, last = values.length - 1) {
  let most = 0;
  for (let index = first; index <= last; index += 1) if (values[index] > most) most = values[index];
  return most;
}
