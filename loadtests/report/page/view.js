// What of the run is in view, and what is told of it at the pointer.

const LEAST_SPAN = 5; // seconds in view at most zoom
const SEEN_AROUND = 30; // seconds around a decision that is shown
const NO_DECISIONS = "There are no decision records: the server has no autoscaling policy, or did not tell.";

const nothingToShow = (result) => (result.windows.start_s.length ? "" : "Nothing took any time: there is nothing to draw.");

// The part of a series in view; each value holds until the next, the last until `end`.
function spanOf(times, view, end) {
  const first = lastUpTo(times, view.from);
  const last = lastUpTo(times, view.to);
  const following = last + 1 < times.length ? times[last + 1] : end;
  return { first, last, at: (index) => Math.max(view.from, times[index]), end: Math.max(Math.min(view.to, following), Math.max(view.from, times[last])) };
}

function viewOf(state, width) {
  const right = width - MARGIN;
  return { ...state, width: right, x: linear(state.from, state.to, GUTTER, right), windows: spanOf(state.result.windows.start_s, state, state.result.duration_s) };
}

function drawOverview(svg, state, x) {
  const { windows, duration_s: duration } = state.result;
  const span = spanOf(windows.start_s, { from: 0, to: duration }, duration);
  const y = linear(0, Math.max(greatest(windows.offered_rps), 1e-9), OVERVIEW_HEIGHT - 7, 3);
  svg.append(s("path", { class: "area arrivals", d: stepBand(span, null, windows.offered_rps, x, y) }));
  const failed = sums(...ERROR_OUTCOMES.map((name) => windows.errors[name]));
  const d = failed.map((count, index) => (count ? `M${pixel(x(span.at(index)))} ${OVERVIEW_HEIGHT - 3}H${pixel(Math.max(x(windows.end_s[index]), x(span.at(index)) + 2))}` : ""));
  svg.append(s("path", { class: "missed-minutes", d: d.join("") }));
}

function controls(store) {
  const { state } = store;
  const look = (name, title, seen) => h("button", { type: "button", title, onclick: seen }, name);
  const zoom = (by) => () => {
    const middle = (state.from + state.to) / 2;
    const half = ((state.to - state.from) * by) / 2;
    store.look(middle - half, middle + half);
  };
  const all = () => store.look(0, state.result.duration_s);
  return h("div", { class: "controls" }, h("span", { class: "buttons" }, look("−", "Zoom out", zoom(2)), look("+", "Zoom in", zoom(0.5)), look("All", "Show all", all)));
}

// The values at the pointer.
function readout(view, at) {
  const { result } = view;
  const { windows } = result;
  const index = lastUpTo(windows.start_s, at);
  const rows = [row("arrivals", "offered", `${digits(windows.offered_rps[index])}/s`), row("answered", "answered", `${digits(windows.answered_rps[index])}/s`)];
  for (const model of result.models) {
    const look = lastUpTo(model.at_s, at);
    if (result.models.length > 1) rows.push(heading(shortened(model.model, 30)));
    for (const name of ["wanted", "target", "ready"]) rows.push(row(name, name, whole(model[name][look])));
    for (const name of ["starting", "pending", "draining"]) if (model[name][look] > 0) rows.push(row(name, name, whole(model[name][look])));
  }
  if (result.queues.at_s.length) {
    const look = lastUpTo(result.queues.at_s, at);
    for (const [name, kind] of [["held", "held"], ["waiting", "queued"], ["running", "running"]]) if (result.queues[name][look] > 0) rows.push(row(kind, name, whole(result.queues[name][look])));
  }
  rows.push(heading(`${clock(windows.start_s[index])} to ${clock(windows.end_s[index])}: ${whole(windows.requests[index])} requests`));
  for (const [kind, name] of [["ttft", "TTFT"], ["itl", "ITL"]]) {
    for (const which of PERCENTILES) {
      const value = windows[kind][which][index];
      const bound = result.bounds[kind][which];
      const over = known(bound) && value !== null && (isNever(value) || value >= bound);
      if (value !== null) rows.push(row(`${kind} ${which}`, `${name} ${named(which)}`, `${latencyWords(value)}${known(bound) ? (over ? " ✗" : " ✓") : ""}`, over ? "over" : ""));
    }
  }
  for (const name of ERROR_OUTCOMES) if (windows.errors[name][index]) rows.push(row(`outcome ${name}`, name, whole(windows.errors[name][index]), "over"));
  return h("div", {}, h("b", {}, clock(at)), h("table", {}, h("tbody", {}, ...rows)));
}

const heading = (words) => h("tr", { class: "window-head" }, h("th", { colspan: 2 }, words));
