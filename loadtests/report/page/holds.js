// What the requests that were held waited for: a bar each, from the intended time to the first token.

const PHASES = [
  "", "requested", "pending_capacity", "process", "imports", "configuration", "gpu_memory",
  "weights_and_kv_cache", "serving_layer", "warm_up", "data_plane", "ready", "busy", "unknown",
];

const phaseWords = (phase) => (phase ? phase.replaceAll("_", " ") : "before the first comment");

function holds(root, data) {
  const { bars, of } = data.holds;
  root.hidden = !of;
  if (!of) return;
  // In the order of a start, then others as they came.
  const present = new Set(bars.flatMap((bar) => bar.parts.map((part) => part.phase)));
  const phases = [...new Set([...PHASES, ...present])].filter((phase) => present.has(phase));
  const shown = phases.filter(Boolean);
  const tone = (phase) => (phase ? `phase tone-${shown.indexOf(phase) % 7}` : "phase untold");
  const keys = phases.map((phase) => key(tone(phase), shortened(phaseWords(phase), 40)));
  keys.push(key("phase engine", "in the engine, to the first token"));
  if (!bars.every((bar) => bar.answered)) keys.push(key(h("b.no-token", "✕"), "ended without a token"));
  const some = `${whole(bars.length)} of ${whole(of)} requests that were queued for a cold start, from the shortest to the longest wait`;
  const words = `${bars.length < of ? some : `${whole(of)} requests were queued for a cold start`}. The bars are seconds from the intended time; the server's comments, which come every few seconds, name the phases.`;
  plainChart(root, keys, (full) => [drawHolds(full, bars, tone, Object.entries(data.bounds.hold))], help(words));
}

function drawHolds(full, bars, tone, bounds) {
  const tall = bars.length <= 12 ? 20 : bars.length <= 24 ? 14 : 10;
  const height = bars.length * tall + 14;
  const width = full - PAGE.margin;
  const longest = Math.max(...bars.map((bar) => bar.ended_s), 0.001);
  const most = longest * 1.02;
  const x = linear(0, most, GUTTER, width);
  const svg = drawing(full, height + 22, image(`Waits of ${bars.length} requests`));
  const name = (y, words) => svg.append(svgText("tick", GUTTER - 7, y, words, "end"));
  const ticks = ticksTo(longest, Math.floor((width - GUTTER) / 70)).filter((each) => each <= most);
  for (const tick of ticks) gridColumn(svg, x(tick), 14, height, `${digits(tick, 6)}\u00a0s`);
  bars.forEach(({ index, at_s: at, wait_s: wait, ended_s: ended, answered, outcome, parts }, order) => {
    const top = 15 + order * tall;
    const spans = parts.map((part) => `; ${phaseWords(part.phase)} ${seconds(part.to_s - part.from_s)}`).join("");
    const end = answered ? `first token after ${seconds(ended)}` : outcome;
    const title = titled(`request ${index}, due at ${clock(at)}: queued for a cold start for ${seconds(wait)}${spans}; ${end}`);
    const long = (from, to) => Math.max(0.5, pixel(x(to) - x(from) - 0.8));
    const drawn = (kind, from, to) => s("rect", { class: kind, x: pixel(x(from)), y: top, width: long(from, to), height: tall - 2 });
    const last = parts.at(-1)?.to_s ?? 0;
    const engine = answered && ended > last && drawn("phase engine", last, ended);
    svg.append(s("g", title, parts.map((part) => drawn(tone(part.phase), part.from_s, part.to_s)), engine));
    if (!answered) svg.append(path("no-token-mark", `M${pixel(x(ended) + 3)} ${top + tall / 2 - 4}l6 6m0-6l-6 6`));
    if (tall >= 14) name(top + tall / 2 + 3, `#${index}`);
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
    svg.append(svgText("bound-name", left, 10, named(which), "middle"));
  }
  return svg;
}
