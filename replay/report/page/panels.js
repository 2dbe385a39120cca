// The panels of the timeline. Each draws one thing over the span in view; all have the same time axis.

const PANELS = [
  {
    title: "Arrivals",
    unit: "requests/s",
    height: 84,
    keys: () => [],
    draw(svg, view, height) {
      const { arrivals_rps: rate } = view.result.timeline;
      const y = axisY(svg, view, height, greatest(rate, view.span.first, view.span.last), 3);
      svg.append(s("path", { class: "area arrivals", d: stepBand(view.span, null, rate, view.x, y) }));
      svg.append(s("path", { class: "line arrivals", d: stepPath(view.span, rate, view.x, y) }));
    },
  },
  {
    title: "Replicas",
    decided: true,
    unit: "",
    height: 216,
    keys: (view) => [
      ["ready", "ready"],
      ["starting", "starting"],
      ["draining", "draining"],
      ["target", "target"],
      ["wanted", "wanted"],
      ...(view.compared ? [["compared", `ready, ${shortened(view.compared.policy, 24)}`]] : []),
      ["decision", "decision"],
    ],
    draw(svg, view, height) {
      const { ready, starting, draining, target, wanted } = view.result.timeline;
      const up = view.result.stacks;
      const { first, last } = view.span;
      const other = view.compared ? greatest(view.compared.timeline.ready, view.comparedSpan.first, view.comparedSpan.last) : 0;
      const most = Math.max(greatest(up.draining, first, last), greatest(target, first, last), greatest(wanted, first, last), other, 1);
      const y = axisY(svg, view, height, most, 5, 1, MARKER_LANE);
      const band = (name, lower, upper) => s("path", { class: `area ${name}`, d: stepBand(view.span, lower, upper, view.x, y) });
      if (greatest(draining, first, last)) svg.append(band("draining", up.starting, up.draining));
      if (greatest(starting, first, last)) svg.append(band("starting", ready, up.starting));
      svg.append(band("ready", null, ready));
      const line = (name, span, values) => s("path", { class: `line ${name}`, d: stepPath(span, values, view.x, y) });
      svg.append(line("ready", view.span, ready));
      if (view.compared) svg.append(line("compared", view.comparedSpan, view.compared.timeline.ready));
      svg.append(line("wanted", view.span, wanted), line("target", view.span, target));
    },
  },
  {
    title: "Waiting",
    unit: "requests",
    height: 84,
    keys: () => [
      ["queued", "queued in engines"],
      ["held", "held, no replica is ready"],
    ],
    draw(svg, view, height) {
      const { queued, held } = view.result.timeline;
      const { first, last } = view.span;
      const y = axisY(svg, view, height, Math.max(greatest(queued, first, last), 1), 3, 1);
      svg.append(s("path", { class: "area queued", d: stepBand(view.span, held, queued, view.x, y) }));
      svg.append(s("path", { class: "line queued", d: stepPath(view.span, queued, view.x, y) }));
      if (!greatest(held, first, last)) return;
      svg.append(s("path", { class: "area held", d: stepBand(view.span, null, held, view.x, y) }));
      svg.append(s("path", { class: "line held", d: stepPath(view.span, held, view.x, y) }));
    },
  },
  {
    title: "Latency over its target",
    unit: "by the minute",
    height: 104,
    keys: (view) => [
      ["ttft", `TTFT P${view.result.targets.percentile}`],
      ["itl", `ITL P${view.result.targets.percentile}`],
      ["limit", "target"],
    ],
    draw(svg, view, height) {
      const { over } = view.result;
      const { first, last } = view.minutes;
      const worst = Math.max(greatest(over.ttft, first, last), greatest(over.itl, first, last), 2);
      const y = axisLog(svg, view, height, 0.1, 10 ** Math.ceil(Math.log10(worst) - 0.3), (tick) => `${digits(tick, 1)}×`);
      svg.append(s("rect", { class: "beyond", x: GUTTER, y: 0, width: view.width - GUTTER, height: Math.max(0, y(1)) }));
      svg.append(s("path", { class: "line itl", d: stepPath(view.minutes, over.itl, view.x, y) }));
      svg.append(s("path", { class: "line ttft", d: stepPath(view.minutes, over.ttft, view.x, y) }));
      svg.append(s("path", { class: "line limit", d: `M${GUTTER} ${pixel(y(1))}H${view.width}` }));
    },
  },
  {
    title: "SLO",
    unit: "by the minute",
    height: 44,
    keys: (view) => [
      ["ok", "attained"],
      ["missed", "missed"],
      ["empty", "no requests"],
      ["cold", "cold waits"],
      ...(view.compared ? [["none", `lower strip: ${shortened(view.compared.policy, 24)}`]] : []),
    ],
    tall: (view) => (view.compared ? 70 : 44),
    draw(svg, view) {
      strip(svg, view, view.result, view.minutes, 2);
      coldWaits(svg, view, 36);
      if (view.compared) strip(svg, view, view.compared, view.comparedMinutes, 46);
    },
  },
];

// One cell a minute, or one for as many minutes as a visible cell takes: missed if one of them was.
function strip(svg, view, result, minutes, top) {
  const { requests, attained, seconds: length } = result.windows;
  const wide = view.x(length) - view.x(0);
  const group = Math.max(1, Math.ceil(2.5 / Math.max(wide, 1e-9)));
  for (let index = minutes.first - (minutes.first % group); index <= minutes.last; index += group) {
    const end = Math.min(index + group, requests.length);
    let kind = "empty";
    for (let each = index; each < end; each += 1) {
      if (requests[each] > 0 && kind !== "missed") kind = attained[each] > 0 ? "ok" : "missed";
    }
    const left = Math.max(view.x(index * length), GUTTER);
    const right = Math.min(view.x(end * length), view.width);
    if (right <= left) continue;
    const gap = right - left > 4 ? 1 : 0.2;
    const [y, height] = kind === "missed" ? [top, 22] : kind === "ok" ? [top + 6, 12] : [top + 11, 3];
    svg.append(s("rect", { class: `minute ${kind}`, x: pixel(left), y, width: Math.max(pixel(right - left - gap), 0.8), height }));
  }
}

function coldWaits(svg, view, middle) {
  const { cold, seconds: length } = view.result.windows;
  const apart = 3; // pixels between two diamonds, below which one stands for both
  let previous = -Infinity;
  for (let index = view.minutes.first; index <= view.minutes.last; index += 1) {
    const at = view.x((index + 0.5) * length);
    if (!cold[index] || at < GUTTER || at - previous < apart) continue;
    previous = at;
    const size = Math.min(3.5 + Math.log10(1 + cold[index]), 7);
    svg.append(
      s("path", { class: "cold", d: `M${pixel(at)} ${middle - size}l${size} ${size}l${-size} ${size}l${-size} ${-size}Z` }),
    );
  }
}

// What panels draw that the result does not hold: sums of replicas, and latencies over their targets.
function prepare(result) {
  const { ready, starting, draining } = result.timeline;
  const up = sums(ready, starting);
  const { requests, ttft_p95_s: ttft, itl_p95_s: itl } = result.windows;
  const over = (values, target) => values.map((value, index) => (requests[index] > 0 && value > 0 ? value / target : null));
  return {
    ...result,
    stacks: { starting: up, draining: sums(up, draining) },
    over: { ttft: over(ttft, result.targets.ttft_s), itl: over(itl, result.targets.itl_s) },
  };
}
