// A load test's page.

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
