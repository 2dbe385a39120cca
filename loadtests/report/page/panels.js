// The panels of the timeline. Each draws one thing over the span in view; all have the same time axis.

const MARGIN = 34; // pixels right of the axis, for the names of bounds
const PERCENTILES = ["p50", "p95", "p99"];
const ERROR_OUTCOMES = ["rejected", "failed", "broken", "abandoned"];

function panelsOf(result) {
  const several = result.models.length > 1;
  const replicaPanels = result.models.map((model) => replicaPanel(model, several));
  if (!replicaPanels.length) replicaPanels.push(replicaPanel({ model: "", at_s: [] }, false));
  return [RATE, ...replicaPanels, IN_FLIGHT, latencyPanel("ttft", "TTFT", "by intended time", 128), latencyPanel("itl", "ITL", "by arrival of the piece", 112), errorPanel(result)];
}

function notice(svg, view, height, words) {
  svg.append(svgText((GUTTER + view.width) / 2, height / 2 + 4, words, { class: "empty-words", "text-anchor": "middle" }));
}

const RATE = {
  title: "Requests",
  unit: "a second",
  height: 92,
  keys: () => [
    ["arrivals", "offered"],
    ["answered", "answered"],
  ],
  draw(svg, view, height) {
    const { offered_rps: offered, answered_rps: answered } = view.result.windows;
    const { first, last } = view.windows;
    const y = axisY(svg, view, height, Math.max(greatest(offered, first, last), greatest(answered, first, last)), 3);
    svg.append(s("path", { class: "area arrivals", d: stepBand(view.windows, null, offered, view.x, y) }));
    svg.append(s("path", { class: "line arrivals", d: stepPath(view.windows, offered, view.x, y) }));
    svg.append(s("path", { class: "line answered", d: stepPath(view.windows, answered, view.x, y) }));
  },
};

const STACK = ["ready", "starting", "pending", "draining"];

function replicaPanel(model, several) {
  const told = model.at_s.length > 0;
  return {
    title: several ? `Replicas, ${shortened(model.model, 40)}` : "Replicas",
    unit: "",
    height: several ? 132 : 168,
    decided: true,
    model: model.model,
    tall: told ? null : () => 60,
    keys: () => [...STACK.filter((name) => name === "ready" || greatest(model[name] ?? [])).map((name) => [name, name]), ["wanted", "wanted"], ["target", "target"], ["decision", "decision"]],
    draw(svg, view, height) {
      if (!told) {
        notice(svg, view, height, "the server did not tell");
        return;
      }
      const span = spanOf(model.at_s, view, view.result.duration_s);
      const most = Math.max(1, greatest(model.stacks.draining, span.first, span.last), greatest(model.target, span.first, span.last), greatest(model.wanted, span.first, span.last));
      const y = axisY(svg, view, height, most, 4, 1, MARKER_LANE + 4);
      let lower = null;
      for (const name of STACK) {
        const upper = model.stacks[name];
        if (greatest(model[name], span.first, span.last)) svg.append(s("path", { class: `area ${name}`, d: stepBand(span, lower, upper, view.x, y) }));
        lower = upper;
      }
      for (const name of ["ready", "wanted", "target"]) svg.append(s("path", { class: `line ${name}`, d: stepPath(span, model[name], view.x, y) }));
    },
  };
}

const IN_FLIGHT = {
  title: "In the server",
  unit: "requests",
  height: 84,
  keys: () => [
    ["held", "held for want of a replica"],
    ["queued", "waiting in engines"],
    ["running", "running"],
  ],
  draw(svg, view, height) {
    const { queues } = view.result;
    if (!queues.at_s.length) {
      notice(svg, view, height, "the server did not tell");
      return;
    }
    const span = spanOf(queues.at_s, view, view.result.duration_s);
    const y = axisY(svg, view, height, Math.max(1, greatest(queues.stacks.running, span.first, span.last)), 3, 1);
    let lower = null;
    for (const [name, kind] of [["held", "held"], ["waiting", "queued"], ["running", "running"]]) {
      const upper = queues.stacks[name];
      if (greatest(queues[name], span.first, span.last)) {
        svg.append(s("path", { class: `area ${kind}`, d: stepBand(span, lower, upper, view.x, y) }));
        // Only where there are any: above nothing, the line would be that of what lies below.
        const shown = upper.map((value, index) => (queues[name][index] > 0 ? value : null));
        svg.append(s("path", { class: `line ${kind}`, d: stepPath(span, shown, view.x, y) }));
      }
      lower = upper;
    }
  },
};

function latencyPanel(kind, title, unit, height) {
  return {
    title,
    unit,
    height,
    keys: (view) => [
      ...PERCENTILES.map((name) => [`${kind} ${name}`, named(name)]),
      ...(Object.keys(boundsOf(view.result, kind).bounds).length ? [["bound", `bounds ${boundsOf(view.result, kind).words}${boundKeys(boundsOf(view.result, kind).bounds)}`]] : []),
    ],
    draw(svg, view, height) {
      const series = view.result.windows[kind];
      const { bounds } = boundsOf(view.result, kind);
      const { first, last } = view.windows;
      const seen = PERCENTILES.flatMap((name) => series[name].slice(first, last + 1)).filter((value) => value !== null);
      if (!seen.length) {
        notice(svg, view, height, kind === "ttft" ? "no requests" : "no answer had two pieces");
        return;
      }
      const y = axisLatency(svg, view, height, seen, bounds, Math.floor(height / 22));
      const most = Math.max(...Object.values(bounds), 0);
      if (most && most <= y.high) svg.append(s("rect", { class: "beyond", x: GUTTER, y: 0, width: view.width - GUTTER, height: Math.max(0, pixel(y(most))) }));
      svg.append(s("path", { class: `area ${kind}`, d: stepRange(view.windows, series.p50, series.p99, view.x, y) }));
      for (const name of PERCENTILES) svg.append(s("path", { class: `line ${kind} ${name}`, d: stepPath(view.windows, series[name], view.x, y) }));
      drawBounds(svg, view, height, bounds, y);
    },
  };
}

// The area between two lines of steps that have gaps: one rectangle a window.
function stepRange(span, lower, upper, x, y) {
  let d = "";
  for (let index = span.first; index <= span.last; index += 1) {
    if (lower[index] === null || upper[index] === null) continue;
    const right = index < span.last ? span.at(index + 1) : span.end;
    d += `M${pixel(x(span.at(index)))} ${pixel(y(lower[index]))}V${pixel(y(upper[index]))}H${pixel(x(right))}V${pixel(y(lower[index]))}Z`;
  }
  return d;
}

function errorPanel(result) {
  const { errors } = result.windows;
  const present = ERROR_OUTCOMES.filter((name) => greatest(errors[name]));
  return {
    title: "Errors",
    unit: present.length ? "requests a window" : "none",
    height: present.length ? 72 : 8,
    keys: () => present.map((name) => [`outcome ${name}`, name]),
    draw(svg, view, height) {
      if (!present.length) {
        svg.append(s("path", { class: "grid", d: `M${GUTTER} ${height - 1.5}H${view.width}` }));
        return;
      }
      const { first, last } = view.windows;
      const totals = sums(...present.map((name) => errors[name]));
      const y = axisY(svg, view, height, Math.max(1, greatest(totals, first, last)), 3, 1);
      let lower = null;
      for (const name of present) {
        const upper = lower ? sums(lower, errors[name]) : errors[name];
        svg.append(s("path", { class: `outcome ${name}`, d: bars(view, errors[name], lower, upper, y) }));
        lower = upper;
      }
    },
  };
}

function bars(view, values, lower, upper, y) {
  const { windows } = view;
  let d = "";
  for (let index = windows.first; index <= windows.last; index += 1) {
    if (!values[index]) continue;
    const left = view.x(windows.at(index));
    const right = view.x(index < windows.last ? windows.at(index + 1) : windows.end);
    const wide = Math.max(2, right - left - 1);
    d += `M${pixel(left)} ${pixel(y(lower ? lower[index] : 0))}V${pixel(y(upper[index]))}h${pixel(wide)}V${pixel(y(lower ? lower[index] : 0))}Z`;
  }
  return d;
}

// Sums that the panels draw, and numbers for the decisions that changed something.
function prepare(result) {
  const stack = (looks, names) => {
    const stacks = {};
    let below = looks.at_s.map(() => 0);
    for (const name of names) {
      below = below.map((value, index) => value + (looks[name][index] ?? 0));
      stacks[name] = below;
    }
    return { ...looks, stacks };
  };
  let number = 0;
  const several = result.models.length > 1;
  const told = (record) => ({ ...record, of: several ? shortened(record.model, 30) : null, number: moved(record) === "same" ? null : (number += 1) });
  return {
    ...result,
    models: result.models.map((model) => stack(model, STACK)),
    queues: stack(result.queues, ["held", "waiting", "running"]),
    decisions: result.decisions.map(told),
  };
}
