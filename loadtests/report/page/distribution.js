// Cumulative distributions: the share of requests, or of gaps, that were at most so slow. The axis of shares widens
// towards 100 %, where the percentiles are that bounds speak of.

const CURVES_HEIGHT = 250;
const BELOW = 22; // pixels for the axis of latencies
const tail = (share) => -Math.log10(1 - Math.min(share, 0.999999));
const SHARES = [0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999];

function distribution(root, curves, bounds, kind, empty) {
  if (!curves.length) {
    root.append(h("p", { class: "notice" }, empty));
    return;
  }
  const words = (curve) => `${curve.name}, ${compact(curve.count)}${curve.never ? ` (${whole(curve.never)} never)` : ""}`;
  root.append(h("p", { class: "keys" }, h("span", {}, `share of ${kind === "ttft" ? "requests" : "gaps"} that were as fast, %`), ...curves.map((curve) => h("span", { class: "key" }, swatch(`curve ${kind} ${curve.name}`), words(curve)))));
  const chart = h("div", { class: "chart-plain" });
  root.append(chart);
  const limits = Object.entries(bounds).flatMap(([name, set]) => Object.entries(set).map(([which, value]) => ({ name, which, value })));
  drawnToWidth(chart, (full) => chart.replaceChildren(drawCurves(full, curves, limits, kind)));
}

function drawCurves(full, curves, limits, kind) {
  const width = full - 12;
  const svg = drawing(full, CURVES_HEIGHT + BELOW, { role: "img", "aria-label": `Distribution of ${kind.toUpperCase()}` });
  const view = { width };
  const [least, greatestValue] = reachOf(curves.flatMap((curve) => curve.value_s), limits.map(({ value }) => value));
  const low = roundLog(least, false);
  const high = Math.max(roundLog(greatestValue, true), low * 2);
  const log = linear(Math.log10(low), Math.log10(high), GUTTER, width);
  const x = (value) => log(Math.log10(Math.min(Math.max(value, low), high)));
  const most = Math.min(Math.max(2.3, ...curves.map((curve) => tail(curve.share.at(-1) ?? 0))), 4.2);
  const y = linear(0, most, CURVES_HEIGHT - 1, 8);
  for (const share of SHARES) if (tail(share) <= most) gridLine(svg, view, y(tail(share)), digits(100 * share, 4));
  for (const tick of logTicks(low, high, Math.floor((width - GUTTER) / 58))) {
    const left = Math.round(x(tick)) + 0.5;
    svg.append(s("path", { class: "grid", d: `M${left} 8V${CURVES_HEIGHT}` }));
    const anchor = left > width - 20 ? "end" : "middle";
    svg.append(svgText(anchor === "end" ? width + 8 : left, CURVES_HEIGHT + 17, tickWords(tick), { class: "tick", "text-anchor": anchor }));
  }
  for (const curve of curves) {
    const shown = curve.value_s.filter((_, index) => tail(curve.share[index]) <= most);
    const d = shown.map((value, index) => `${index ? "L" : "M"}${pixel(x(value))} ${pixel(y(tail(curve.share[index])))}`).join("");
    svg.append(s("path", { class: `line curve ${kind} ${curve.name}`, d }));
  }
  const words = [];
  for (const { name, which, value } of limits) {
    const place = { left: x(value), top: y(tail(Number(which.slice(1)) / 100)), beyond: value > high ? " →" : value < low ? " ←" : "" };
    words.push(drawLimit(svg, place, `${name === "all" ? "" : `${name} `}${named(which)} < ${seconds(value)}`, width, words));
  }
  return svg;
}

// A curve that keeps its bound passes above this mark, on its left; so the words stand below it, or to its right, and
// lower if there are others. A bound beyond the axis has an arrow for a mark.
function drawLimit(svg, { left, top, beyond }, words, width, others) {
  const before = left > GUTTER + (width - GUTTER) * 0.55;
  const long = 6.4 * (words.length + beyond.length); // pixels, about
  const gap = beyond ? 0 : 8;
  const from = before ? left - gap - long : left + gap;
  let at = top + (before && !beyond ? 15 : 4);
  while (others.some((other) => Math.abs(other.at - at) < 12 && from < other.to && from + long > other.from)) at += 12;
  if (!beyond) svg.append(s("path", { class: "limit-dot", d: `M${pixel(left - 3)} ${pixel(top)}a3 3 0 1 0 6 0a3 3 0 1 0-6 0Z` }, s("title", {}, words)));
  svg.append(svgText(before ? left - gap : left + gap, at, `${words}${beyond}`, { class: "limit-name", "text-anchor": before ? "end" : "start" }));
  return { at, from, to: from + long };
}
