// What the requests that were held waited for: a bar each, from the intended time to the first token.

const PHASES = [
  "", "requested", "pending_capacity", "process", "imports", "configuration", "weights_and_kv_cache", "serving_layer", "warm_up", "data_plane", "ready", "busy", "unknown",
];

const phaseWords = (phase) => (phase ? phase.replaceAll("_", " ") : "before the first comment");

function holds(root, data) {
  const { bars, of } = data.holds;
  root.hidden = !of;
  if (!of) return;
  // In the order of a start, then others as they came.
  const rank = (phase) => (PHASES.includes(phase) ? PHASES.indexOf(phase) : PHASES.length);
  const phases = [...new Set(bars.flatMap((bar) => bar.parts.map((part) => part.phase)))].sort((a, b) => rank(a) - rank(b));
  const told = phases.filter(Boolean);
  const tone = (phase) => (phase ? `phase tone-${told.indexOf(phase) % 7}` : "phase untold");
  const chart = h("div", { class: "chart-plain" });
  const counted = bars.length < of ? `${whole(bars.length)} of ${whole(of)} requests that were held, from the shortest to the longest wait` : `${whole(of)} requests were held`;
  const keys = [...phases.map((phase) => key(tone(phase), shortened(phaseWords(phase), 40))), key("phase engine", "in the engine, to the first token")];
  if (!bars.every((bar) => bar.answered)) keys.push(key(h("b", { class: "no-token" }, "✕"), "ended without a token"));
  const words = `${counted}. The bars are seconds from the intended time; the server's comments, which come every few seconds, name the phases.`;
  root.append(h("p", { class: "keys" }, keys), chart, help(words));
  drawnToWidth(chart, (full) => chart.replaceChildren(drawHolds(full, bars, tone, Object.entries(data.bounds.hold))));
}

function drawHolds(full, bars, tone, bounds) {
  const tall = bars.length <= 12 ? 20 : bars.length <= 24 ? 14 : 10;
  const height = bars.length * tall + 14;
  const width = full - PAGE.margin;
  const most = Math.max(...bars.map((bar) => bar.ended_s), 0.001) * 1.02;
  const x = linear(0, most, GUTTER, width);
  const svg = drawing(full, height + 22, { role: "img", "aria-label": `Waits of ${bars.length} requests` });
  const name = (y, words) => svg.append(svgText(GUTTER - 7, y, words, { class: "tick", "text-anchor": "end" }));
  for (const tick of ticksTo(most / 1.02, Math.floor((width - GUTTER) / 70)).filter((each) => each <= most)) gridColumn(svg, x(tick), 14, height, `${digits(tick, 6)}\u00a0s`);
  bars.forEach((bar, index) => {
    const top = 15 + index * tall;
    const parts = bar.parts.map((part) => `; ${phaseWords(part.phase)} ${seconds(part.to_s - part.from_s)}`).join("");
    const title = `request ${bar.index}, due at ${clock(bar.at_s)}: held ${seconds(bar.wait_s)}${parts}; ${bar.answered ? `first token after ${seconds(bar.ended_s)}` : bar.outcome}`;
    const part = (kind, from, to) => s("rect", { class: kind, x: pixel(x(from)), y: top, width: Math.max(0.5, pixel(x(to) - x(from) - 0.8)), height: tall - 2 });
    const end = bar.parts.at(-1)?.to_s ?? 0;
    const engine = bar.answered && bar.ended_s > end ? part("phase engine", end, bar.ended_s) : null;
    svg.append(s("g", {}, s("title", {}, title), bar.parts.map((each) => part(tone(each.phase), each.from_s, each.to_s)), engine));
    if (!bar.answered) svg.append(path("no-token-mark", `M${pixel(x(bar.ended_s) + 3)} ${top + tall / 2 - 4}l6 6m0-6l-6 6`));
    if (tall >= 14) name(top + tall / 2 + 3, `#${bar.index}`);
  });
  if (tall < 14) {
    name(24, "first");
    name(height - 2, "last");
  }
  let right = -Infinity;
  for (const [which, value] of bounds.filter(([, each]) => each <= most)) {
    const left = x(value);
    svg.append(path("bound", `M${pixel(left)} 12V${height}`, `${named(which)} below ${seconds(value)}`));
    if (left - 14 < right) continue;
    right = left + 14;
    svg.append(svgText(left, 10, named(which), { class: "bound-name", "text-anchor": "middle" }));
  }
  return svg;
}
