// Charts over the last 15 minutes, drawn by uPlot.

const CHART_HEIGHT = 150;
const LEAST_SHOWN_S = 60; // of a server that has just started
const TICKS = [...Array(12).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function lineOf([label, tone, , shape], unit) {
  const stroke = colour(tone);
  const stepped = { paths: uPlot.paths.stepped({ align: 1 }) };
  const value = (_, number) => (known(number) ? `${compact(number < 10 ? Number(number.toPrecision(3)) : number)}${unit && ` ${unit}`}` : NOTHING);
  return {
    label, stroke, value, width: 1.6, points: { show: false }, spanGaps: false,
    ...(shape === "area" && { fill: `${stroke}38` }), ...(["steps", "target", "area"].includes(shape) && stepped),
    ...(shape === "steps" && { dash: [3, 2] }), ...(shape === "target" && { dash: [6, 4] }),
  };
}

// Adds a chart, and returns it. Its width follows the page's.
function chartOf(parent, panel) {
  const [title, unit, lines] = panel;
  const shown = unit === "per second" ? "/s" : unit;
  const root = h("div");
  parent.append(h("figure.panel", h("figcaption", h("b", title), unit && h("span.unit", unit)), root));
  const axis = { stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const options = {
    width: Math.max(200, root.clientWidth), height: CHART_HEIGHT, cursor: { sync: { key: "fleet" }, drag: { x: false, y: false } },
    scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(1, known(high) ? high * 1.1 : 1)] } },
    axes: [
      { ...axis, space: 70, size: 22, values: (_, ticks, index, space, step_s) => ticks.map((at) => (step_s < 60 ? timeOf(at) : timeOf(at).slice(0, 5))) },
      { ...axis, size: 46, incrs: TICKS, values: (_, ticks) => ticks.map(compact) },
    ],
    series: [{ label: "time", value: (_, at) => (known(at) ? timeOf(at) : NOTHING) }, ...lines.map((line) => lineOf(line, shown))],
  };
  const plot = new uPlot(options, [[], ...lines.map(() => [])], root);
  plot.root.querySelector("canvas").setAttribute("aria-hidden", "true");
  const resize = new ResizeObserver(() => requestAnimationFrame(() => root.clientWidth && plot.setSize({ width: root.clientWidth, height: CHART_HEIGHT })));
  resize.observe(root);
  return {
    lines, plot,
    destroy() {
      resize.disconnect();
      plot.destroy();
    },
  };
}

function drawCharts(charts, samples, name, knobs) {
  const seen = samples.filter((sample) => sample.models[name]);
  const now = samples.at(-1)?.at ?? Date.now() / 1000;
  const first = Math.max(now - 60 * MINUTES_SHOWN, Math.min(seen[0]?.at ?? now, now - LEAST_SHOWN_S));
  for (const { lines, plot } of charts) {
    plot.setData([seen.map((sample) => sample.at), ...lines.map(([, , read]) => seen.map((sample) => read(sample.models[name], knobs) ?? null))], false);
    plot.setScale("x", { min: first, max: now });
    // The newest values, unless a reader points at others. uPlot clears the legend when it has drawn.
    if (!(plot.cursor.left >= 0)) setTimeout(() => plot.setLegend({ idx: seen.length - 1 }, false));
  }
}
