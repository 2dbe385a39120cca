// What of the replay is in view, and with what beside it.

const LEAST_SPAN = 30; // seconds in view at most zoom
const SEEN_AROUND = 450; // seconds around a decision that is shown
const NO_DECISIONS = "There are no decision records of this policy; the production policy writes them.";

const nothingToShow = (result) => (result.timeline.at_s.length ? "" : "Nothing was replayed: the trace has no requests.");
const panelsOf = () => PANELS;

// What panels need to know of the part in view.
function viewOf(state, width) {
  const { from, to, result, compared } = state;
  const span = (times, step) => {
    const first = lastUpTo(times, from);
    const last = lastUpTo(times, to);
    return { first, last, at: (index) => Math.max(from, times[index]), end: Math.min(to, times[last] + step) };
  };
  const minutes = (windows) => {
    const last = windows.requests.length - 1;
    const length = windows.seconds;
    return {
      first: Math.min(Math.floor(from / length), Math.max(last, 0)),
      last: Math.min(Math.floor(to / length), last),
      at: (index) => Math.max(from, index * length),
      end: Math.min(to, (last + 1) * length),
    };
  };
  const of = (each) => span(each.timeline.at_s, each.timeline.interval_s);
  return {
    ...state,
    width,
    x: linear(from, to, GUTTER, width),
    span: of(result),
    minutes: minutes(result.windows),
    comparedSpan: compared && of(compared),
    comparedMinutes: compared && minutes(compared.windows),
  };
}

// All of it in small: the arrivals, and below them the minutes that missed.
function drawOverview(svg, state, x) {
  const { duration_s: duration, timeline, windows } = state.result;
  const width = x(duration);
  const all = viewOf({ ...state, from: 0, to: duration, compared: null }, width);
  const y = linear(0, Math.max(greatest(timeline.arrivals_rps), 1e-9), OVERVIEW_HEIGHT - 7, 3);
  svg.append(s("path", { class: "area arrivals", d: stepBand(all.span, null, timeline.arrivals_rps, x, y) }));
  const missed = windows.attained.map((met, index) => (windows.requests[index] > 0 && !met ? index : -1));
  const d = missed.filter((index) => index >= 0).map((index) => `M${pixel(x(index * 60))} ${OVERVIEW_HEIGHT - 3}H${pixel(x(index * 60 + 60))}`);
  svg.append(s("path", { class: "missed-minutes", d: d.join("") }));
}

// Which policy is drawn, with which other one beside it, and what part of it.
function controls(store) {
  const { results, state } = store;
  const named = (index) => h("option", { value: index }, shortened(results[index].policy, 40));
  const each = results.map((_, index) => index);
  const of = h("select", { onchange: (event) => store.show(Number(event.target.value)) }, ...each.map(named));
  of.value = results.indexOf(state.result);
  const beside = h(
    "select",
    { onchange: (event) => store.set({ compared: event.target.value === "" ? null : results[event.target.value] }) },
    h("option", { value: "" }, "nothing"),
    ...each.map(named),
  );
  const look = (name, title, seen) => h("button", { type: "button", title, onclick: seen }, name);
  const whole = () => store.look(0, state.result.duration_s);
  const zoom = (by) => () => {
    const middle = (state.from + state.to) / 2;
    const half = ((state.to - state.from) * by) / 2;
    store.look(middle - half, middle + half);
  };
  return h(
    "div",
    { class: "controls" },
    results.length > 1 ? h("label", {}, "policy ", of) : null,
    results.length > 1 ? h("label", {}, "compare with ", beside) : null,
    h("span", { class: "buttons" }, look("−", "Zoom out", zoom(2)), look("+", "Zoom in", zoom(0.5)), look("All", "Show all", whole)),
  );
}
