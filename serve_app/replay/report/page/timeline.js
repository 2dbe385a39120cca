// The timeline: panels over one axis of time, through which one moves by dragging, by keys or by the overview.

const LEAST_SPAN = 30; // seconds in view at most zoom
const CARD_TOP = 26;

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

function timeline(root, store) {
  const { state } = store;
  if (!state.result.timeline.at_s.length) {
    root.append(h("p", { class: "notice" }, "Nothing was replayed: the trace has no requests."));
    return;
  }
  const crosshair = h("div", { class: "crosshair", hidden: true });
  const brushed = h("div", { class: "brushed", hidden: true });
  const card = h("div", { class: "floating", hidden: true });
  const said = h("p", { class: "unseen", "aria-live": "polite" });
  const figures = PANELS.map(() => h("figure", { class: "panel" }));
  const axis = h("div", { class: "axis" });
  const chart = h(
    "div",
    {
      class: "chart",
      tabindex: 0,
      role: "group",
      "aria-label": "Timeline of the replay",
      "aria-describedby": "timeline-help",
    },
    ...figures,
    axis,
    crosshair,
    brushed,
    card,
  );
  const help =
    "Drag across the panels to look closer, double-click to see all. Keys: left and right go through the decisions, " +
    "plus and minus zoom, shift with an arrow moves, 0 shows all, escape closes.";
  root.append(controls(store), chart, said, h("p", { class: "help", id: "timeline-help" }, help));
  const over = h("div", { class: "overview" });
  chart.after(over);

  let view = null;
  let pinned = false;

  const show = (content, x, top, tone) => {
    card.replaceChildren(content);
    card.className = `floating ${tone}`;
    card.hidden = false;
    place(card, chart.clientWidth, x, top);
  };
  const hide = () => {
    if (pinned) return;
    card.hidden = true;
    crosshair.hidden = true;
  };
  const showDecision = (index) => {
    if (pinned) return;
    const record = state.result.decisions[index];
    crosshair.hidden = true;
    show(decisionCard(record), view.x(record.at), figures[1].offsetTop + CARD_TOP + MARKER_LANE, "decision");
  };
  const on = {
    show: showDecision,
    hide,
    pin(index, event) {
      event.stopPropagation();
      pinned = false;
      showDecision(index);
      pinned = true;
      store.set({ chosen: index });
    },
  };
  const unpin = () => {
    pinned = false;
    hide();
  };

  const draw = (width) => {
    view = viewOf(state, width);
    const focused = chart.contains(document.activeElement) ? document.activeElement.dataset.index : undefined;
    PANELS.forEach((panel, order) => {
      const height = panel.tall ? panel.tall(view) : panel.height;
      const unit = panel.unit ? h("span", { class: "unit" }, panel.unit) : null;
      const keys = panel.keys(view).map(([kind, name]) => h("span", { class: "key" }, swatch(kind), name));
      const svg = drawing(width, height, { role: "group", "aria-label": `${panel.title} ${panel.unit}`.trim() });
      panel.draw(svg, view, height);
      if (order === 1) drawMarks(svg, view, height, state.chosen, on);
      figures[order].replaceChildren(h("figcaption", {}, h("b", {}, panel.title), unit, ...keys), svg);
    });
    axis.replaceChildren(drawAxis(view));
    if (focused !== undefined) chart.querySelector(`.mark[data-index="${focused}"]`)?.focus({ preventScroll: true });
  };
  drawnToWidth(chart, draw);
  overview(over, store);
  store.subscribe((changed) => {
    if (changed.has("result") || changed.has("from") || changed.has("to")) {
      pinned = false;
      card.hidden = true;
    }
    draw(Math.floor(chart.clientWidth));
    const record = state.chosen === null ? null : state.result.decisions[state.chosen];
    if (record && changed.has("chosen")) said.textContent = `${clock(record.at, true)}: ${change(record)}, ${record.reason}`;
  });

  const timeAt = (event) => view.x.invert(event.clientX - chart.getBoundingClientRect().left);
  let dragged = null;
  chart.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.target.closest(".mark, .floating")) return;
    unpin();
    dragged = { from: timeAt(event), x: event.clientX };
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => {
    if (!view || event.target.closest(".floating")) return;
    const left = chart.getBoundingClientRect().left;
    const x = Math.max(GUTTER, Math.min(event.clientX - left, view.width));
    if (dragged && Math.abs(event.clientX - dragged.x) > 4) {
      const start = Math.max(GUTTER, Math.min(view.x(dragged.from), view.width));
      brushed.hidden = false;
      brushed.style.left = `${Math.min(start, x)}px`;
      brushed.style.width = `${Math.abs(x - start)}px`;
    }
    if (pinned || event.target.closest(".mark")) return;
    crosshair.hidden = false;
    crosshair.style.transform = `translateX(${x}px)`;
    const top = event.clientY - chart.getBoundingClientRect().top + 18;
    const last = state.result.duration_s - 1e-6;
    show(readout(view, Math.min(Math.max(view.x.invert(x), 0), last)), x, top, "values");
  });
  chart.addEventListener("pointerup", (event) => {
    if (dragged && Math.abs(event.clientX - dragged.x) > 4) {
      const to = timeAt(event);
      store.look(Math.min(dragged.from, to), Math.max(dragged.from, to));
    }
    dragged = null;
    brushed.hidden = true;
  });
  chart.addEventListener("pointercancel", () => {
    dragged = null;
    brushed.hidden = true;
  });
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("dblclick", () => store.look(0, state.result.duration_s));
  chart.addEventListener("keydown", (event) => {
    const act = keys(store, event);
    const { index } = event.target.dataset;
    if (event.key === "Escape") unpin();
    if (index !== undefined && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      on.pin(Number(index), event);
    }
    if (!act) return;
    event.preventDefault();
    act();
    if (event.key.startsWith("Arrow") && !event.shiftKey && state.chosen !== null) {
      // The marks are drawn anew in the next frame; what has the focus has to wait for it.
      requestAnimationFrame(() => {
        pinned = false;
        chart.querySelector(`.mark[data-index="${state.chosen}"]`)?.focus({ preventScroll: true });
      });
    }
  });
}

// What a key does on the timeline, or null.
function keys(store, event) {
  const { state } = store;
  const { decisions, duration_s: duration } = state.result;
  const width = state.to - state.from;
  const step = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
  if (event.altKey || event.ctrlKey || event.metaKey) return null;
  if (step && event.shiftKey) return () => store.pan((step * width) / 5);
  if (step && decisions.length) {
    const begin = step > 0 ? -1 : decisions.length;
    return () => store.choose(Math.max(0, Math.min((state.chosen ?? begin) + step, decisions.length - 1)));
  }
  if (event.key === "+" || event.key === "=") return () => store.look(state.from + width / 4, state.to - width / 4);
  if (event.key === "-") return () => store.look(state.from - width / 2, state.to + width / 2);
  if (event.key === "0") return () => store.look(0, duration);
  return null;
}

function drawAxis(view) {
  const svg = drawing(view.width, 22, { "aria-hidden": "true" });
  const { ticks, exact } = timeTicks(view.from, view.to, view.width / 90);
  for (const tick of ticks) {
    const x = Math.round(view.x(tick)) + 0.5;
    const anchor = x > view.width - 24 ? "end" : "middle";
    svg.append(s("path", { class: "tick-mark", d: `M${x} 0V5` }));
    svg.append(svgText(x, 18, clock(tick, exact), { class: "tick", "text-anchor": anchor }));
  }
  return svg;
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
