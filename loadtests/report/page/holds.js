// What the requests that were held waited for: a bar each, from the intended time to the first token.

const PHASE_NAMES = [
  "requested", "pending_capacity", "process", "imports", "configuration", "weights_and_kv_cache", "serving_layer", "warm_up", "data_plane", "ready", "busy", "unknown",
];
const HOLD_BELOW = 22; // pixels for the axis
const UNTOLD = "before the first word";

const phaseWords = (phase) => (phase ? phase.replaceAll("_", " ") : UNTOLD);

// Phases in the order of a start, then others as they came.
function phasesOf(bars) {
  const found = [...new Set(bars.flatMap((bar) => bar.parts.map((part) => part.phase)))];
  const rank = (phase) => (phase === "" ? -1 : PHASE_NAMES.includes(phase) ? PHASE_NAMES.indexOf(phase) : PHASE_NAMES.length);
  return found.sort((a, b) => rank(a) - rank(b));
}

function holds(root, data) {
  const { bars: rows, of } = data.holds;
  root.hidden = !of;
  if (!of) return;
  const phases = phasesOf(rows);
  const told = phases.filter(Boolean);
  const tone = (phase) => (phase ? `phase tone-${told.indexOf(phase) % 7}` : "phase untold");
  root.append(
    h(
      "p",
      { class: "keys" },
      ...phases.map((phase) => h("span", { class: "key" }, swatch(tone(phase)), shortened(phaseWords(phase), 40))),
      h("span", { class: "key" }, swatch("phase engine"), "in the engine, to the first token"),
      rows.some((bar) => !bar.answered) ? h("span", { class: "key" }, h("b", { class: "no-token" }, "✕"), "ended without a token") : null,
    ),
  );
  const chart = h("div", { class: "chart-plain" });
  root.append(chart, h("p", { class: "help" }, `${rows.length < of ? `${whole(rows.length)} of ${whole(of)} requests that were held, from the shortest to the longest wait` : `${whole(of)} requests were held`}; seconds from their intended time, by what the server's comments said, which come every few seconds.`));
  drawnToWidth(chart, (full) => chart.replaceChildren(drawHolds(full, rows, tone, Object.entries(data.bounds.hold))));
}

function drawHolds(full, rows, tone, bounds) {
  const tall = rows.length <= 12 ? 20 : rows.length <= 24 ? 14 : 10;
  const named = tall >= 14;
  const height = rows.length * tall;
  const width = full - MARGIN;
  const most = Math.max(...rows.map((bar) => bar.ended_s), 0.001);
  const svg = drawing(full, height + HOLD_BELOW + 14, { role: "img", "aria-label": `Waits of ${rows.length} requests` });
  const ticks = ticksTo(most, Math.floor((width - GUTTER) / 70));
  const x = linear(0, Math.max(most * 1.02, 1e-6), GUTTER, width);
  for (const tick of ticks.filter((each) => each <= most * 1.02)) {
    const left = Math.round(x(tick)) + 0.5;
    svg.append(s("path", { class: "grid", d: `M${left} 14V${height + 14}` }), svgText(left, height + 31, `${digits(tick, 6)}\u00a0s`, { class: "tick", "text-anchor": "middle" }));
  }
  rows.forEach((bar, index) => {
    const top = 14 + index * tall + 1;
    const title = `request ${bar.index}, due at ${clock(bar.at_s)}: held ${seconds(bar.wait_s)}${bar.parts.map((part) => `; ${phaseWords(part.phase)} ${seconds(part.to_s - part.from_s)}`).join("")}; ${bar.answered ? `first token after ${seconds(bar.ended_s)}` : bar.outcome}`;
    const part = (kind, from, to) => s("rect", { class: kind, x: pixel(x(from)), y: top, width: Math.max(0.5, pixel(x(to) - x(from) - 0.8)), height: tall - 2 });
    const end = bar.parts.at(-1)?.to_s ?? 0;
    svg.append(
      s("g", {}, s("title", {}, title), ...bar.parts.map((each) => part(tone(each.phase), each.from_s, each.to_s)), bar.answered && bar.ended_s > end ? part("phase engine", end, bar.ended_s) : null),
    );
    if (!bar.answered) svg.append(s("path", { class: "no-token-mark", d: `M${pixel(x(bar.ended_s) + 3)} ${top + tall / 2 - 4}l6 6m0-6l-6 6` }));
    if (named) svg.append(svgText(GUTTER - 7, top + tall / 2 + 3, `#${bar.index}`, { class: "tick", "text-anchor": "end" }));
  });
  if (!named) svg.append(svgText(GUTTER - 7, 24, "first", { class: "tick", "text-anchor": "end" }), svgText(GUTTER - 7, height + 12, "last", { class: "tick", "text-anchor": "end" }));
  let right = -Infinity;
  for (const [name, value] of bounds) {
    if (value > most * 1.02) continue;
    const left = x(value);
    svg.append(s("path", { class: "bound", d: `M${pixel(left)} 12V${height + 14}` }, s("title", {}, `${name.toUpperCase()} below ${seconds(value)}`)));
    if (left - 14 < right) continue;
    right = left + 14;
    svg.append(svgText(left, 10, name.toUpperCase(), { class: "bound-name", "text-anchor": "middle" }));
  }
  return svg;
}
