// A load test's page, and the panels of its timeline.

const ERROR_OUTCOMES = ["rejected", "failed", "broken", "abandoned"];

const PAGE = {
  margin: 34, // for the names of bounds
  markLane: 28, leastSpan: 5, seenAround: 30, nothing: "The run took no time: there is nothing to draw.",
  noDecisions: "There are no decision records: the server has no autoscaling policy, or did not report its decisions.", prepare,
  panels,
  // The windows in which requests came to an error.
  troubled: ({ windows }) => windows.start_s.flatMap((from, index) => (ERROR_OUTCOMES.some((name) => windows.errors[name][index]) ? [[from, windows.end_s[index]]] : [])),
  sections: [
    ["reasons", "Why the run is invalid", reasons],
    ["headline", "Headline figures", headline],
    ["checks", "Bounds", (root, data) => checks(root, data.verdict.checks, "The scenario sets no bounds.")],
    ["timeline", "Timeline", timeline],
    ["decisions", "Decisions", decisionList],
    ["requests", "Every request", requests],
    [
      ["ttft", "Time to first token", (root, { curves, bounds }) => distribution(root, curves.ttft, { all: bounds.ttft, warm: bounds.warm }, "ttft", "No request was sent.")],
      ["itl", "Time between tokens", (root, { curves, bounds }) => distribution(root, curves.itl, { all: bounds.itl }, "itl", "No answer had two pieces.")],
    ],
    ["holds", "Cold waits", holds],
    ["latencies", "Latencies", latencies],
    ["outcomes", "Outcomes of the requests", outcomes],
    ["troubles", "Errors", troubles],
    [["costs", "Where the GPU-seconds went", costs], ["client", "How the client kept time", client]],
    ["run", "How it was run", (root, data) => root.append(entries(data.run))],
  ],
};

// Tracks for the timeline, and numbers for the decisions that changed something.
function prepare(result) {
  let number = 0;
  const several = result.models.length > 1;
  const ending = (looks) => ({ ...looks, end_s: result.duration_s });
  const told = (record) => ({ ...record, of: several ? shortened(record.model, 30) : null, number: moved(record) === "same" ? null : (number += 1) });
  return {
    ...result, numbered: true,
    track: { at_s: result.windows.start_s, end_s: result.duration_s }, models: result.models.map(ending),
    queues: ending(result.queues), decisions: result.decisions.map(told),
  };
}

const PERCENTILES = ["p50", "p95", "p99"];
const NOT_TOLD = "the server did not report it";

function panels({ result }) {
  const { windows, queues, track } = result;
  const rate = (name, label, values, shape) => ({ name, label, track, values, shape, read: (index) => `${digits(values[index])}/s` });
  const queue = (name, key, label, said) => ({ name: key, label, said, track: queues, values: queues[name], shape: "both", seldom: true });
  const models = result.models.length ? result.models : [null];
  return [
    { title: "Requests", unit: "per second", height: 92, layers: [rate("arrivals", "offered", windows.offered_rps, "both"), rate("answered", "answered", windows.answered_rps, "line")] },
    ...models.map((model) => replicaPanel(model, models.length > 1)),
    {
      title: "In the server", unit: "requests", height: 84, whole: true, empty: NOT_TOLD,
      layers: queues.at_s.length ? stacked([queue("held", "held", "held, no replica is ready", "held"), queue("waiting", "queued", "waiting in engines", "waiting"), queue("running", "running", "running")]) : [],
    },
    {
      ...latencyPanel(result, "ttft", "TTFT", "by intended time", "no requests", 128),
      heading(at) {
        const index = lastUpTo(windows.start_s, at);
        return `${clock(windows.start_s[index])} to ${clock(windows.end_s[index])}: ${whole(windows.requests[index])} requests`;
      },
    },
    latencyPanel(result, "itl", "ITL", "by arrival of the piece", "no answer had two pieces", 112), errorPanel(windows, track),
  ];
}

function replicaPanel(model, several) {
  const about = { title: several ? `Replicas, ${shortened(model.model, 40)}` : "Replicas", unit: "", decided: true, whole: true, empty: NOT_TOLD, keys: [["decision", "decision"]] };
  if (!model?.at_s.length) return { ...about, height: 60, layers: [], model: model?.model ?? "" };
  const layer = (name, more) => ({ name, label: name, track: model, values: model[name], ...more });
  return {
    ...about, model: model.model, height: several ? 132 : 168, ticks: 4,
    heading: () => (several ? shortened(model.model, 30) : null),
    layers: [
      ...stacked([layer("ready"), ...["starting", "pending", "draining"].map((name) => layer(name, { seldom: true }))]),
      layer("ready", { label: null, shape: "line" }), layer("wanted", { shape: "line" }), layer("target", { shape: "line" }),
    ],
  };
}

function latencyPanel(result, kind, title, unit, empty, height) {
  const { track } = result;
  const series = result.windows[kind];
  const { bounds, words } = boundsOf(result, kind);
  const most = Math.max(0, ...Object.values(bounds));
  const judged = (name, value) => (known(result.bounds[kind][name]) ? isNever(value) || value >= result.bounds[kind][name] : null);
  const line = (name) => ({
    name: `${kind} ${name}`, label: named(name), said: `${title} ${named(name)}`, track, values: series[name], shape: "line",
    over: (index) => judged(name, series[name][index]),
    read(index) {
      const value = series[name][index];
      const over = judged(name, value);
      return value === null ? null : `${latencyWords(value)}${over === null ? "" : over ? " ✗" : " ✓"}`;
    },
  });
  return {
    title, unit, height, empty, beyond: most, keys: boundKeys(bounds, words),
    layers: [{ name: kind, track, values: series.p99, lower: series.p50, shape: "range" }, ...PERCENTILES.map(line)],
    axis(svg, view, panel, layers) {
      const seen = layers.flatMap(({ values, span }) => values.slice(span.first, span.last + 1)).filter((value) => value !== null);
      return latencyAxis(svg, view, height, seen, bounds, Math.floor(height / 22));
    },
    over: (svg, view, y) => drawBounds(svg, view, height, bounds, y),
  };
}

function errorPanel({ errors }, track) {
  const present = ERROR_OUTCOMES.filter((name) => greatest(errors[name]));
  if (!present.length) return { title: "Errors", unit: "none", height: 8, layers: [], draw: (svg, view) => svg.append(path("grid", `M${GUTTER} 6.500H${view.width}`)) };
  const bar = (name) => ({ name: `outcome ${name}`, label: name, track, values: errors[name], shape: "bars", seldom: true, over: () => true });
  return { title: "Errors", unit: "per window", height: 72, whole: true, layers: stacked(present.map(bar)) };
}
