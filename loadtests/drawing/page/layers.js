// Panels of the timeline, drawn and read from descriptions.
//
// A panel is { title, unit, height, layers }, and may have `whole` (it counts things), `ticks` (how many), `empty` (what is
// said where no layer has a value), `decided` (its marks are decisions, those of its `model`), `axis` (in place of a linear
// one), `beyond` (the ground above this value is tinted), `over` and `draw` (draw on it, or all of it), `keys` and `reads`
// (beside those of its layers), and `heading` (above its readings).
//
// A layer is { name, label, track, values, shape }: `name` is its class, `label` its key (without one it has neither key nor
// reading), `shape` is "line", "area", "both", "bars", or "range" (down to `lower`). `said` is what its reading is
// called, `seldom` that it is shown only where it is above 0, and `read` and `over` give a reading's words and whether it is bad.

// Layers, each on top of the one before it.
function stacked(layers) {
  let lower = layers[0]?.values.map(() => 0);
  return layers.map((layer) => {
    const upper = lower.map((value, index) => value + (layer.values[index] ?? 0));
    const on = { ...layer, lower, upper, shape: layer.shape ?? "area" };
    lower = upper;
    return on;
  });
}

function keysOf(panel) {
  const told = panel.layers.filter(({ label, seldom, values, keyless }) => label && !keyless && (!seldom || greatest(values)));
  return [...told.map(({ name, label }) => [name, label]), ...(panel.keys ?? [])];
}

function countAxis(svg, view, panel, layers) {
  const most = Math.max(panel.whole ? 1 : 0, ...layers.map(({ upper, values, span }) => greatest(upper ?? values, span.first, span.last)));
  const ticks = ticksTo(most, panel.ticks ?? 3, panel.whole ? 1 : 0);
  const y = linear(0, Math.max(ticks.at(-1), 1e-9), panel.height - 1, panel.decided ? PAGE.markLane : 6);
  for (const tick of ticks) gridLine(svg, view, y(tick), compact(Number(tick.toPrecision(12))));
  return y;
}

function drawPanel(svg, view, panel) {
  if (panel.draw) return panel.draw(svg, view);
  const layers = panel.layers.map((layer) => ({ ...layer, span: view.span(layer.track) }));
  const seen = ({ values, span }) => values.slice(span.first, span.last + 1).some((value) => value !== null);
  if (panel.empty && !layers.some(seen)) {
    svg.append(svgText((GUTTER + view.width) / 2, panel.height / 2 + 4, panel.empty, { class: "empty-words", "text-anchor": "middle" }));
    return;
  }
  const y = (panel.axis ?? countAxis)(svg, view, panel, layers);
  if (panel.beyond && panel.beyond <= (y.high ?? Infinity)) {
    svg.append(s("rect", { class: "beyond", x: GUTTER, y: 0, width: view.width - GUTTER, height: Math.max(0, pixel(y(panel.beyond))) }));
  }
  for (const { name, shape, span, lower, values, upper = values } of layers) {
    if (shape === "bars") svg.append(path(name, boxes(span, lower, upper, view.x, y, 1)));
    else if (shape !== "line" && (shape === "range" || greatest(values, span.first, span.last))) svg.append(path(`area ${name}`, boxes(span, lower, upper, view.x, y)));
  }
  for (const { name, shape, span, lower, values, seldom, upper = values } of layers) {
    if ((shape !== "line" && shape !== "both") || (seldom && !greatest(values, span.first, span.last))) continue;
    // On top of others only where there is any: above nothing, the line would be that of the layer below.
    const shown = lower ? upper.map((value, index) => (values[index] > 0 ? value : null)) : values;
    svg.append(path(`line ${name}`, stepPath(span, shown, view.x, y)));
  }
  panel.over?.(svg, view, y);
}

// A line of what floats over a drawing.
const reading = (kind, name, value, over = false) => h("tr", { class: over ? "over" : null }, h("td", {}, kind ? swatch(kind) : null, name), h("td", {}, value));

// The values of all panels at a time.
function readout(panels, at) {
  const rows = panels.flatMap((panel) => {
    const heading = panel.heading?.(at);
    const own = panel.layers.flatMap(({ name, label, said, track, values, seldom, read, over }) => {
      const index = lastUpTo(track.at_s, at);
      if (!label || (seldom && !(values[index] > 0))) return [];
      const text = read ? read(index) : whole(values[index]);
      return text === null ? [] : [reading(name, said ?? label, text, over?.(index))];
    });
    return [heading ? h("tr", { class: "window-head" }, h("th", { colspan: 2 }, heading)) : null, ...own, ...(panel.reads?.(at) ?? []).map((each) => reading(...each))];
  });
  return h("div", {}, h("b", {}, clock(at, true)), h("table", {}, h("tbody", {}, rows)));
}
