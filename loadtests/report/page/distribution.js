// Cumulative distributions: the share of requests, or of gaps, that were at most so slow. The axis of shares widens
// towards 100 %, where the percentiles are that bounds speak of.

const CURVES_HEIGHT = 250;
const SHARES = [0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999];
const tail = (share) => -Math.log10(1 - Math.min(share, 0.999999));

function distribution(root, curves, bounds, kind, empty) {
  if (!curves.length) return root.append(notice(empty));
  const words = (curve) => `${curve.name}, ${compact(curve.count)}${curve.never ? ` (${whole(curve.never)} never)` : ""}`;
  const title = h("span", {}, `share of ${kind === "ttft" ? "requests" : "gaps"} that were as fast, %`);
  const chart = h("div", { class: "chart-plain" });
  root.append(h("p", { class: "keys" }, title, curves.map((curve) => key(`curve ${kind} ${curve.name}`, words(curve)))), chart);
  const limits = Object.entries(bounds).flatMap(([name, set]) => Object.entries(set).map(([which, value]) => ({ name, which, value })));
  drawnToWidth(chart, (full) => chart.replaceChildren(drawCurves(full, curves, limits, kind)));
}

function drawCurves(full, curves, limits, kind) {
  const width = full - 12;
  const svg = drawing(full, CURVES_HEIGHT + 22, { role: "img", "aria-label": `Distribution of ${kind.toUpperCase()}` });
  const [least, greatestValue] = reachOf(curves.flatMap((curve) => curve.value_s), limits.map(({ value }) => value));
  const low = roundLog(least, false);
  const x = logarithmic(low, Math.max(roundLog(greatestValue, true), low * 2), GUTTER, width);
  const most = Math.min(Math.max(2.3, ...curves.map((curve) => tail(curve.share.at(-1) ?? 0))), 4.2);
  const y = linear(0, most, CURVES_HEIGHT - 1, 8);
  for (const share of SHARES) if (tail(share) <= most) gridLine(svg, { width }, y(tail(share)), digits(100 * share, 4));
  for (const tick of logTicks(x.low, x.high, Math.floor((width - GUTTER) / 58))) {
    gridColumn(svg, x(tick), 8, CURVES_HEIGHT, tickWords(tick), x(tick) > width - 20 ? { "text-anchor": "end", x: width + 8 } : {});
  }
  for (const curve of curves) {
    const shown = curve.value_s.filter((_, index) => tail(curve.share[index]) <= most);
    svg.append(path(`line curve ${kind} ${curve.name}`, shown.map((value, index) => `${index ? "L" : "M"}${pixel(x(value))} ${pixel(y(tail(curve.share[index])))}`).join("")));
  }
  const others = [];
  for (const { name, which, value } of limits) {
    const at = { left: x(value), top: y(tail(Number(which.slice(1)) / 100)), beyond: value > x.high ? " →" : value < x.low ? " ←" : "" };
    others.push(drawLimit(svg, at, `${name === "all" ? "" : `${name} `}${named(which)} < ${seconds(value)}`, width, others));
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
  if (!beyond) svg.append(path("limit-dot", `M${pixel(left - 3)} ${pixel(top)}a3 3 0 1 0 6 0a3 3 0 1 0-6 0Z`, words));
  svg.append(svgText(before ? left - gap : left + gap, at, `${words}${beyond}`, { class: "limit-name", "text-anchor": before ? "end" : "start" }));
  return { at, from, to: from + long };
}
