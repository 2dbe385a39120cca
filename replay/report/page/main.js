// A replay's page.

const PAGE = {
  hours: true, margin: 0, markLane: 20, leastSpan: 30, seenAround: 450,
  nothing: "Nothing was replayed: the trace has no requests.",
  noDecisions: "There are no decision records of this policy; the production policy writes them.", prepare, panels,
  // The minutes that missed the targets.
  troubled: ({ windows }) => windows.attained.flatMap((met, index) => (windows.requests[index] > 0 && !met ? [[60 * index, 60 * index + 60]] : [])),
  sections: [
    ["headline", "Headline figures", headline],
    ["timeline", "Timeline", timeline],
    ["decisions", "Decisions", decisionList],
    ["frontier", "Cost versus attainment", frontier],
    [["latency", "Latency", latency], ["costs", "Where the GPU-seconds went", costs]],
    ["run", "How it was run", run],
  ],
};

// Tracks for the timeline, and what it draws that the result does not hold: requests in engines, and latencies over targets.
function prepare(result) {
  const { timeline, windows, targets } = result;
  const over = (values, target) => values.map((value, index) => (windows.requests[index] > 0 && value > 0 ? value / target : null));
  return {
    ...result, track: { at_s: timeline.at_s, end_s: (timeline.at_s.at(-1) ?? 0) + timeline.interval_s },
    minutes: { at_s: windows.requests.map((_, index) => index * windows.seconds), end_s: windows.requests.length * windows.seconds },
    waiting: timeline.queued.map((queued, index) => queued - timeline.held[index]),
    over: { ttft: over(windows.ttft_p95_s, targets.ttft_s), itl: over(windows.itl_p95_s, targets.itl_s) },
  };
}
