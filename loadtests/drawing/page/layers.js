// Panels of the timeline, drawn and read from descriptions.
//
// A panel is { title, unit, height, layers }, and may have `whole` (it counts things), `ticks` (how many), `empty`
// (what is said where no layer has a value), `decided` (its marks are decisions, those of its `model`), `axis` (in
// place of a linear one), `beyond` (the ground above this value is tinted), `over` and `draw` (draw on it, or all of
// it), `keys` and `reads` (beside those of its layers), and `heading` (above its readings).
//
// A layer is { name, label, track, values, shape }: `name` is its class, `label` its key (without one it has neither
// key nor reading), `shape` is "line", "area", "both", "bars", or "range" (down to `lower`). `said` is what its
// reading is called, `seldom` that it is shown only where it is above 0, and `read` and `over` give a reading's words
// and whether it is bad. What draws it also finds `span`, and `seen`, its values in view.

// Layers, each on top of the one before it.
function stacked(layers, shape = "area") {
  let lower = layers[0]?.values.map(() => 0);
  return layers.map((layer) => {
    const upper = lower.map((value, index) => value + (layer.values[index] ?? 0));
    const on = { ...layer, lower, upper, shape };
    lower = upper;
    return on;
  });
}

// Replicas by state on top of each other, and the lines of those ready, of others, of those wanted and of the target.
function replicaLayers(track, counts, states, others = []) {
  const layer = (name, more) => ({ name, label: name, track, values: counts[name], shape: "line", ...more });
  const areas = stacked(states.map((name) => layer(name, { seldom: name !== "ready" })));
  return [...areas, layer("ready", { label: null }), ...others, layer("wanted"), layer("target")];
}

function keysOf({ layers, keys = [] }) {
  const texts = layers.filter((each) => each.label && !each.keyless && (!each.seldom || greatest(each.values)));
  return [...texts.map(({ name, label }) => [name, label]), ...keys].map((each) => key(...each));
}

function countAxis(svg, view, { whole: counted, height, decided, ticks: count = 3 }, layers) {
  const most = Math.max(counted ? 1 : 0, ...layers.map(({ upper, span }) => greatest(span.seen(upper))));
  const ticks = ticksTo(most, count, counted ? 1 : 0);
  const y = linear(0, Math.max(ticks.at(-1), 1e-9), height - 1, decided ? PAGE.markLane : 6);
  for (const tick of ticks) gridLine(svg, view, y(tick), compact(Number(tick.toPrecision(12))));
  return y;
}

function drawPanel(svg, view, panel) {
  if (panel.draw) return panel.draw(svg, view);
  const layers = panel.layers.map((layer) => {
    const span = view.span(layer.track);
    return { upper: layer.values, ...layer, span, seen: span.seen(layer.values) };
  });
  if (panel.empty && layers.every(({ seen }) => seen.every((value) => value === null))) {
    const middle = (GUTTER + view.width) / 2;
    return svg.append(svgText("empty-words", middle, panel.height / 2 + 4, panel.empty, "middle"));
  }
  const y = (panel.axis ?? countAxis)(svg, view, panel, layers);
  if (panel.beyond && panel.beyond <= (y.high ?? Infinity)) {
    const height = Math.max(0, pixel(y(panel.beyond)));
    svg.append(s("rect.beyond", { x: GUTTER, y: 0, width: view.width - GUTTER, height }));
  }
  for (const { name, shape, span, lower, upper, seen } of layers) {
    const [kind, gap] = shape === "bars" ? [name, 1] : [`area ${name}`, 0];
    const filled = gap || shape === "range" || (shape !== "line" && greatest(seen));
    if (filled) svg.append(path(kind, boxes(span, lower, upper, view.x, y, gap)));
  }
  for (const { name, shape, span, lower, upper, values, seen, seldom } of layers) {
    if ((shape !== "line" && shape !== "both") || (seldom && !greatest(seen))) continue;
    // On top of others only where there is any: above nothing, the line would be that of the layer below.
    const shown = lower ? upper.map((value, index) => (values[index] > 0 ? value : null)) : values;
    svg.append(path(`line ${name}`, stepPath(span, shown, view.x, y)));
  }
  panel.over?.(svg, view, y);
}

// A line of what floats over a drawing.
const reading = (kind, name, value, over = false) =>
  h("tr", { class: over ? "over" : null }, h("td", kind && swatch(kind), name), h("td", value));

// The values of all panels at a time.
function readout(panels, at) {
  const rows = panels.flatMap(({ heading, layers, reads }) => {
    const head = heading?.(at);
    const own = layers.flatMap(({ name, label, said = label, track, values, seldom, read, over }) => {
      const index = lastUpTo(track.at_s, at);
      if (!label || (seldom && !(values[index] > 0))) return [];
      const text = read ? read(index) : whole(values[index]);
      return text === null ? [] : [reading(name, said, text, over?.(index))];
    });
    const more = reads?.(at).map((each) => reading(...each)) ?? [];
    return [head && h("tr.window-head", h("th", { colspan: 2 }, head)), ...own, ...more];
  });
  return h("div", h("b", clock(at, true)), h("table", h("tbody", rows)));
}
