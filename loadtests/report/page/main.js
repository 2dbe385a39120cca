// A load test's page, and the panels of its timeline.

const ERROR_OUTCOMES = ["rejected", "failed", "broken", "abandoned"];

const PAGE = {
  margin: 34, // for the names of bounds
  markLane: 28, leastSpan: 5, seenAround: 30, prepare, panels,
  nothing: "The run took no time: there is nothing to draw.",
  noDecisions: "There are no decision records: the server has no autoscaling policy, or did not report its decisions.",
  // The windows in which requests came to an error.
  troubled({ windows: { start_s: starts, end_s: ends, errors } }) {
    const failed = starts.map((_, index) => ERROR_OUTCOMES.some((name) => errors[name][index]));
    return starts.map((from, index) => [from, ends[index]]).filter((_, index) => failed[index]);
  },
  sections: [
    ["reasons", "Why the run is invalid", reasons],
    ["headline", "Headline figures", headline],
    ["checks", "Bounds", (root, data) => checks(root, data.verdict.checks, "The scenario sets no bounds.")],
    ["timeline", "Timeline", timeline],
    ["decisions", "Decisions", decisionList],
    ["requests", "Every request", requests],
    [["ttft", "Time to first token", firstTokens], ["itl", "Time between tokens", gaps]],
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
  const { models, windows, duration_s: end_s } = result;
  const shown = (record) => {
    const of = models.length > 1 ? shortened(record.model, 30) : null;
    return { ...record, of, number: moved(record) === "same" ? null : (number += 1) };
  };
  return {
    ...result, numbered: true, decisions: result.decisions.map(shown),
    track: { at_s: windows.start_s, end_s }, models: models.map((looks) => ({ ...looks, end_s })), queues: { ...result.queues, end_s },
  };
}

const PERCENTILES = ["p50", "p95", "p99"];
const NOT_TOLD = "the server did not report it";

function panels({ result }) {
  const { windows, queues, track } = result;
  const rate = (name, label, values, shape) => ({ name, label, track, values, shape, read: (index) => `${digits(values[index])}/s` });
  const queue = (name, key, label, said) => ({ name: key, label, said, track: queues, values: queues[name], seldom: true });
  const held = [
    queue("held", "held", "queued for a cold start", "held"), queue("waiting", "queued", "waiting in engines", "waiting"),
    queue("running", "running", "running"),
  ];
  const rates = [rate("arrivals", "offered", windows.offered_rps, "both"), rate("answered", "answered", windows.answered_rps, "line")];
  const models = result.models.length ? result.models : [{ at_s: [], model: "" }];
  const heading = (at) => {
    const index = lastUpTo(windows.start_s, at);
    return `${clock(windows.start_s[index])} to ${clock(windows.end_s[index])}: ${whole(windows.requests[index])} requests`;
  };
  const inServer = queues.at_s.length ? stacked(held, "both") : [];
  return [
    { title: "Requests", unit: "per second", height: 92, layers: rates },
    ...models.map((model) => replicaPanel(model, models.length > 1)),
    { title: "In the server", unit: "requests", height: 84, whole: true, empty: NOT_TOLD, layers: inServer },
    { ...latencyPanel(result, "ttft", "by intended time", "no requests", 128), heading },
    latencyPanel(result, "itl", "by arrival of the piece", "no answer had two pieces", 112),
    errorPanel(windows, track),
  ];
}

function replicaPanel(model, several) {
  const about = {
    title: several ? `Replicas, ${shortened(model.model, 40)}` : "Replicas",
    unit: "", decided: true, whole: true, empty: NOT_TOLD, keys: [["decision", "decision"]], model: model.model,
  };
  if (!model.at_s.length) return { ...about, height: 60, layers: [] };
  const layers = replicaLayers(model, model, ["ready", "starting", "pending", "draining"]);
  const heading = () => several && shortened(model.model, 30);
  return { ...about, height: several ? 132 : 168, ticks: 4, layers, heading };
}

function latencyPanel(result, kind, unit, empty, height) {
  const { track } = result;
  const series = result.windows[kind];
  const own = result.bounds[kind];
  const { bounds, keys } = boundsOf(result, kind);
  const line = (name) => {
    const values = series[name];
    const over = (index) => known(own[name]) && (isNever(values[index]) || values[index] >= own[name]);
    const judged = (index) => (known(own[name]) ? (over(index) ? " ✗" : " ✓") : "");
    const read = (index) => (values[index] === null ? null : `${latencyWords(values[index])}${judged(index)}`);
    const said = `${named(kind)} ${named(name)}`;
    return { name: `${kind} ${name}`, label: named(name), said, track, values, shape: "line", over, read };
  };
  const range = { name: kind, track, values: series.p99, lower: series.p50, shape: "range" };
  return {
    title: named(kind), unit, height, empty, keys,
    beyond: Math.max(0, ...Object.values(bounds)),
    layers: [range, ...PERCENTILES.map(line)],
    axis(svg, view, panel, layers) {
      const values = layers.flatMap(({ seen }) => seen).filter((value) => value !== null);
      return latencyAxis(svg, view, height, values, bounds, Math.floor(height / 22));
    },
    over: (svg, view, y) => drawBounds(svg, view, height, bounds, y),
  };
}

function errorPanel({ errors }, track) {
  const present = ERROR_OUTCOMES.filter((name) => greatest(errors[name]));
  const line = (svg, view) => svg.append(path("grid", `M${GUTTER} 6.500H${view.width}`));
  if (!present.length) return { title: "Errors", unit: "none", height: 8, layers: [], draw: line };
  const bar = (name) => ({ name: `outcome ${name}`, label: name, track, values: errors[name], seldom: true, over: () => true });
  return { title: "Errors", unit: "per window", height: 72, whole: true, layers: stacked(present.map(bar), "bars") };
}
