// A replay's page, and the panels of its timeline.

const PAGE = {
  hours: true, margin: 0, markLane: 20, leastSpan: 30, seenAround: 450, prepare, panels,
  nothing: "Nothing was replayed: the trace has no requests.",
  noDecisions: "There are no decision records of this policy; the production policy writes them.",
  // The minutes that missed the targets.
  troubled: ({ windows: { attained, requests } }) =>
    attained.flatMap((met, index) => (requests[index] > 0 && !met ? [[60 * index, 60 * index + 60]] : [])),
  sections: [
    ["headline", "Headline figures", headline],
    ["timeline", "Timeline", timeline],
    ["decisions", "Decisions", decisionList],
    ["frontier", "Cost versus attainment", frontier],
    [["latency", "Latency", latency], ["costs", "Where the GPU-seconds went", costs]],
    ["run", "How it was run", run],
  ],
};

// Tracks for the timeline, requests in engines, and latencies over their targets.
function prepare(result) {
  const { timeline, windows, targets } = result;
  const { requests, seconds: length } = windows;
  const over = (values, target) => values.map((value, index) => (requests[index] > 0 && value > 0 ? value / target : null));
  return {
    ...result, track: { at_s: timeline.at_s, end_s: (timeline.at_s.at(-1) ?? 0) + timeline.interval_s },
    minutes: { at_s: requests.map((_, index) => index * length), end_s: requests.length * length },
    waiting: timeline.queued.map((queued, index) => queued - timeline.held[index]),
    over: { ttft: over(windows.ttft_p95_s, targets.ttft_s), itl: over(windows.itl_p95_s, targets.itl_s) },
  };
}

function panels({ result, compared }) {
  const { timeline, track, targets } = result;
  const count = (name, more) => ({ name, label: name, track, values: timeline[name], shape: "line", ...more });
  const rates = timeline.arrivals_rps;
  const rate = count("arrivals", { values: rates, shape: "both", keyless: true, read: (index) => `${digits(rates[index])}/s` });
  const beside = ({ policy, track: own, timeline: { ready } }) =>
    ({ name: "compared", label: `ready, ${shortened(policy, 24)}`, track: own, values: ready, shape: "line" });
  const replicas = { height: 216, whole: true, ticks: 5, decided: true, keys: [["decision", "decision"]] };
  const waiting = stacked([
    count("held", { label: "queued for a cold start", said: "queued for a start", seldom: true }),
    count("queued", { label: "queued in engines", said: "queued", values: result.waiting }),
  ]);
  const lines = [count("queued", { label: null }), count("held", { label: null, seldom: true })];
  const layers = replicaLayers(track, timeline, ["ready", "starting", "draining"], compared ? [beside(compared)] : []);
  return [
    { title: "Arrivals", unit: "requests/s", height: 84, layers: [rate] },
    { title: "Replicas", unit: "", ...replicas, layers },
    { title: "Waiting", unit: "requests", height: 84, whole: true, layers: [...waiting, ...lines] },
    { title: "Latency over its target", unit: "by the minute", height: 104, ...latencies(result, targets) },
    { title: "SLO", unit: "by the minute", height: compared ? 70 : 44, layers: [], ...attainment(result, compared) },
  ];
}

function latencies({ over, windows: { requests, ttft_p95_s: ttft, itl_p95_s: itl }, minutes }, targets) {
  const line = (name, values, target) => ({
    name, label: `${name.toUpperCase()} P${targets.percentile}`, track: minutes, values: over[name], shape: "line",
    over: (index) => values[index] > target,
    read: (index) => requests[index] > 0 ? `${seconds(values[index])} ${values[index] > target ? "✗" : "✓"}` : null,
  });
  return {
    beyond: 1, keys: [["limit", "target"]],
    layers: [line("ttft", ttft, targets.ttft_s), line("itl", itl, targets.itl_s)],
    heading(at) {
      const index = lastUpTo(minutes.at_s, at);
      return requests[index] > 0 && `minute ${clock(minutes.at_s[index])}: ${whole(requests[index])} requests`;
    },
    axis(svg, view, panel, layers) {
      const worst = Math.max(2, ...layers.map(({ seen }) => greatest(seen)));
      const y = logarithmic(0.1, 10 ** Math.ceil(Math.log10(worst) - 0.3), panel.height - 1, 8);
      for (let tick = y.low; tick <= y.high * 1.001; tick *= 10) gridLine(svg, view, y(tick), `${digits(tick, 1)}×`);
      return y;
    },
    over: (svg, view, y) => svg.append(path("line limit", `M${GUTTER} ${pixel(y(1))}H${view.width}`)),
  };
}

// A strip of minutes, a second strip for the compared policy, and a diamond for each minute with cold waits.
function attainment(result, compared) {
  const keys = [["ok", "attained"], ["missed", "missed"], ["empty", "no requests"], ["cold", "cold waits"]];
  if (compared) keys.push(["none", `lower strip: ${shortened(compared.policy, 24)}`]);
  const { requests, attained, cold, rejected } = result.windows;
  return {
    keys,
    reads(at) {
      const index = lastUpTo(result.minutes.at_s, at);
      const slo = attained[index] > 0 ? ["ok", "SLO", "attained"] : ["missed", "SLO", "missed", true];
      return [
        requests[index] > 0 && slo,
        cold[index] > 0 && ["cold", "queued for a cold start", whole(cold[index])],
        rejected[index] > 0 && ["missed", "rejected", whole(rejected[index]), true],
      ].filter((row) => row && requests[index] > 0);
    },
    draw(svg, view) {
      strip(svg, view, result, 2);
      coldWaits(svg, view, result, 36);
      if (compared) strip(svg, view, compared, 46);
    },
  };
}

// One cell for each minute, or for as many minutes as a visible cell needs: missed if one of them was.
function strip(svg, view, result, top) {
  const { requests, attained, seconds: length } = result.windows;
  const { first, last } = view.span(result.minutes);
  const group = Math.max(1, Math.ceil(2.5 / Math.max(view.x(length) - view.x(0), 1e-9)));
  for (let index = first - (first % group); index <= last; index += group) {
    const end = Math.min(index + group, requests.length);
    const met = attained.slice(index, end).filter((_, each) => requests[index + each] > 0);
    const kind = !met.length ? "empty" : met.every((each) => each > 0) ? "ok" : "missed";
    const left = Math.max(view.x(index * length), GUTTER);
    const right = Math.min(view.x(end * length), view.width);
    if (right <= left) continue;
    const gap = right - left > 4 ? 1 : 0.2;
    const [y, height] = { missed: [top, 22], ok: [top + 6, 12], empty: [top + 11, 3] }[kind];
    svg.append(s(`rect.minute.${kind}`, { x: pixel(left), y, width: Math.max(pixel(right - left - gap), 0.8), height }));
  }
}

function coldWaits(svg, view, { windows: { cold, seconds: length }, minutes }, middle) {
  const apart = 3; // pixels between two diamonds, below which one stands for both
  const { first, last } = view.span(minutes);
  let previous = -Infinity;
  for (let index = first; index <= last; index += 1) {
    const at = view.x((index + 0.5) * length);
    if (!cold[index] || at < GUTTER || at - previous < apart) continue;
    previous = at;
    const size = Math.min(3.5 + Math.log10(1 + cold[index]), 7);
    svg.append(path("cold", `M${pixel(at)} ${middle - size}l${size} ${size}l${-size} ${size}l${-size} ${-size}Z`));
  }
}
