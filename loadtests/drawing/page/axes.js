// Axes and their grids, for panels that have one axis of time.

const GUTTER = 50; // pixels left of the axis, for its numbers

// A linear axis from 0 with its grid. `above` pixels are left free over the highest value.
function axisY(svg, view, height, most, count, least = 0, above = 6) {
  const ticks = ticksTo(most, count, least);
  const y = linear(0, Math.max(ticks.at(-1), 1e-9), height - 1, above);
  for (const tick of ticks) gridLine(svg, view, y(tick), compact(Number(tick.toPrecision(12))));
  return y;
}

// A logarithmic one; what lies below the lowest value is drawn on it.
function axisLog(svg, view, height, low, high, label) {
  const log = linear(Math.log10(low), Math.log10(high), height - 1, 8);
  const y = (value) => log(Math.log10(Math.min(Math.max(value, low), high)));
  for (let tick = low; tick <= high * 1.001; tick *= 10) gridLine(svg, view, y(tick), label(tick));
  return y;
}

function gridLine(svg, view, y, label) {
  svg.append(s("path", { class: "grid", d: `M${GUTTER} ${Math.round(y) + 0.5}H${view.width}` }));
  svg.append(svgText(GUTTER - 7, Math.min(Math.max(y + 4, 10), 1e6), label, { class: "tick", "text-anchor": "end" }));
}

// The axis of time, below the panels.
function drawAxis(view) {
  const svg = drawing(view.width, 22, { "aria-hidden": "true" });
  const { ticks, exact } = timeTicks(view.from, view.to, view.width / 90);
  for (const tick of ticks) {
    const x = Math.round(view.x(tick)) + 0.5;
    const anchor = x > view.width - 24 ? "end" : "middle";
    svg.append(s("path", { class: "tick-mark", d: `M${x} 0V5` }));
    svg.append(svgText(x, 18, clock(tick, exact), { class: "tick", "text-anchor": anchor }));
  }
  return svg;
}
