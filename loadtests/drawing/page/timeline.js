// The timeline: panels over one axis of time, through which one moves by dragging, by keys or by the overview.

const CARD_TOP = 26;
const OVERVIEW_HEIGHT = 46;
const GRIP = 9; // pixels
const HELP =
  "Drag across the panels to zoom in, double-click to see all. Keys: left and right go through the decisions, " +
  "plus and minus zoom, shift with an arrow moves, 0 shows all, escape closes.";

// What panels need to know of the part in view.
function viewOf(state, width) {
  const right = width - PAGE.margin;
  return { ...state, width: right, x: linear(state.from, state.to, GUTTER, right), span: (track) => spanOf(track, state.from, state.to) };
}

function timeline(root, data, store) {
  const { state } = store;
  let panels = PAGE.panels(state);
  if (!panels[0].layers[0].values.length) return root.append(notice(PAGE.nothing));
  const [crosshair, brushed, card] = ["crosshair", "brushed", "floating"].map((kind) => h("div", { class: kind, hidden: true }));
  const said = h("p", { class: "unseen", "aria-live": "polite" });
  const figures = panels.map(() => h("figure", { class: "panel" }));
  const axis = h("div", { class: "axis" });
  const chart = h("div", { class: "chart", tabindex: 0, role: "group", "aria-label": "Timeline", "aria-describedby": "timeline-help" }, figures, axis, crosshair, brushed, card);
  const over = h("div", { class: "overview" });
  root.append(controls(store), chart, over, said, h("p", { class: "help", id: "timeline-help" }, HELP));

  let view = null;
  let pinned = false;
  const show = (content, x, top, tone) => {
    card.replaceChildren(content);
    card.className = `floating ${tone}`;
    card.hidden = false;
    place(card, chart.clientWidth, x, top);
  };
  const hide = () => {
    if (!pinned) card.hidden = crosshair.hidden = true;
  };
  const unpin = () => {
    pinned = false;
    hide();
  };
  // Where a decision's mark is: there may be a panel for each model.
  const decided = panels.flatMap((panel, order) => (panel.decided ? [{ model: panel.model, figure: figures[order] }] : []));
  const panelOf = (record) => (decided.find(({ model }) => model === record.model) ?? decided[0]).figure;
  const on = {
    hide,
    show(...indices) {
      if (pinned) return;
      const records = indices.map((index) => state.result.decisions[index]);
      crosshair.hidden = true;
      show(decisionCards(records), view.x(records[0].at), panelOf(records[0]).offsetTop + CARD_TOP + PAGE.markLane, "decision");
    },
    pin(event, ...indices) {
      event.stopPropagation();
      pinned = false;
      on.show(...indices);
      pinned = true;
      store.set({ chosen: indices[0] });
    },
  };
  const focus = (index) => chart.querySelector(`.mark[data-index="${index}"]`)?.focus({ preventScroll: true });

  const draw = (width) => {
    view = viewOf(state, width);
    const focused = chart.contains(document.activeElement) ? document.activeElement.dataset.index : undefined;
    panels.forEach((panel, order) => {
      const svg = drawing(width, panel.height, { role: "group", "aria-label": `${panel.title} ${panel.unit}`.trim() });
      drawPanel(svg, view, panel);
      if (panel.decided) drawMarks(svg, view, state.chosen, on, panel);
      const unit = panel.unit && h("span", { class: "unit" }, panel.unit);
      figures[order].replaceChildren(h("figcaption", {}, h("b", {}, panel.title), unit, keysOf(panel).map(([kind, name]) => key(kind, name))), svg);
    });
    axis.replaceChildren(timeAxis(view));
    if (focused !== undefined) focus(focused);
  };
  drawnToWidth(chart, draw);
  overview(over, store);
  store.subscribe((changed) => {
    if (changed.has("result") || changed.has("compared")) panels = PAGE.panels(state);
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
  const far = (event) => dragged && Math.abs(event.clientX - dragged.x) > 4;
  const release = () => {
    dragged = null;
    brushed.hidden = true;
  };
  chart.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.target.closest(".mark, .floating")) return;
    unpin();
    dragged = { from: timeAt(event), x: event.clientX };
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => {
    if (!view || event.target.closest(".floating")) return;
    const { left, top } = chart.getBoundingClientRect();
    const within = (x) => Math.max(GUTTER, Math.min(x, view.width));
    const x = within(event.clientX - left);
    if (far(event)) {
      const begin = within(view.x(dragged.from));
      brushed.hidden = false;
      brushed.style.cssText = `left:${Math.min(begin, x)}px;width:${Math.abs(x - begin)}px`;
    }
    if (pinned || event.target.closest(".mark")) return;
    crosshair.hidden = false;
    crosshair.style.transform = `translateX(${x}px)`;
    const at = Math.min(Math.max(view.x.invert(x), 0), state.result.duration_s - 1e-6);
    show(readout(panels, at), x, event.clientY - top + 18, "values");
  });
  chart.addEventListener("pointerup", (event) => {
    if (far(event)) store.look(...[dragged.from, timeAt(event)].sort((a, b) => a - b));
    release();
  });
  chart.addEventListener("pointercancel", release);
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("dblclick", store.all);
  chart.addEventListener("keydown", (event) => {
    const { index } = event.target.dataset;
    const act = index !== undefined && [" ", "Enter"].includes(event.key) ? () => on.pin(event, Number(index)) : actOf(store, event);
    if (event.key === "Escape") unpin();
    if (!act) return;
    event.preventDefault();
    act();
    if (!event.key.startsWith("Arrow") || event.shiftKey || state.chosen === null) return;
    // The marks are drawn anew in the next frame; what has the focus has to wait for it.
    requestAnimationFrame(() => {
      pinned = false;
      focus(state.chosen);
    });
  });
}

// What a key does on the timeline, or null.
function actOf(store, event) {
  const { state } = store;
  const { decisions } = state.result;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.altKey || event.ctrlKey || event.metaKey) return null;
  if (step && event.shiftKey) return () => store.pan((step * (state.to - state.from)) / 5);
  if (step && decisions.length) {
    const begin = step > 0 ? -1 : decisions.length;
    return () => store.choose(Math.max(0, Math.min((state.chosen ?? begin) + step, decisions.length - 1)));
  }
  return { "+": () => store.zoom(0.5), "=": () => store.zoom(0.5), "-": () => store.zoom(2), 0: store.all }[event.key] ?? null;
}

// Which result is drawn, with which other one beside it, and what part of it.
function controls(store) {
  const { results, state } = store;
  const named = results.map((result, index) => [index, shortened(result.policy ?? "", 40)]);
  const policy = choice("Policy", named, results.indexOf(state.result), (index) => store.show(results[index]));
  const other = choice("Compare with", [["", "nothing"], ...named], "", (index) => store.set({ compared: results[index] ?? null }));
  const choices = results.length > 1 ? [h("label", {}, "policy ", policy), h("label", {}, "compare with ", other)] : [];
  const buttons = [button("−", "Zoom out", () => store.zoom(2)), button("+", "Zoom in", () => store.zoom(0.5)), button("All", "Show all", store.all)];
  return h("div", { class: "controls" }, choices, h("span", { class: "buttons" }, buttons));
}

// All of it in a small strip, with a window on the part in view that can be moved and stretched.
function overview(root, store) {
  const { state } = store;
  const moves = [(at, { to }) => store.look(at, to), (at, { from }) => store.look(from, at)];
  const grips = ["Start", "End"].map((end, index) => grip(`${end} of the part in view`, (by) => moves[index]([state.from, state.to][index] + by, state), state));
  const [picture, before, after, opening] = ["picture", "shade", "shade", "opening"].map((kind) => h("div", { class: kind }));
  root.append(picture, before, after, opening, ...grips);
  let x = null;

  const place = () => {
    const [left, right] = [x(state.from), x(state.to)];
    before.style.cssText = `left:${GUTTER}px;width:${left - GUTTER}px`;
    after.style.cssText = `left:${right}px;width:${Math.max(0, x(state.result.duration_s) - right)}px`;
    opening.style.cssText = `left:${left}px;width:${right - left}px`;
    [state.from, state.to].forEach((at, index) => {
      const value = { "aria-valuenow": Math.round(at), "aria-valuetext": clock(at, true), "aria-valuemax": Math.round(state.result.duration_s) };
      filled(grips[index], { ...value, style: `left: ${x(at) - GRIP / 2}px;` }, []);
    });
  };
  const draw = (width) => {
    const view = viewOf({ ...state, from: 0, to: state.result.duration_s }, width);
    x = view.x;
    const { name, values, track } = PAGE.panels(state)[0].layers[0];
    const y = linear(0, Math.max(greatest(values), 1e-9), OVERVIEW_HEIGHT - 7, 3);
    const troubled = PAGE.troubled(state.result).map(([from, to]) => `M${pixel(x(from))} ${OVERVIEW_HEIGHT - 3}H${pixel(Math.max(x(to), x(from) + 2))}`);
    const svg = drawing(width, OVERVIEW_HEIGHT, { "aria-hidden": "true" });
    svg.append(path(`area ${name}`, boxes(view.span(track), null, values, x, y)), path("troubled", troubled.join("")));
    picture.replaceChildren(svg);
    place();
  };
  drawnToWidth(root, draw);
  store.subscribe((changed) => (changed.has("result") ? draw(Math.floor(root.clientWidth)) : place()));

  const timeAt = (event) => x.invert(event.clientX - root.getBoundingClientRect().left);
  dragging(opening, timeAt, (at, begin) => store.look(begin.from + at - begin.at, begin.to + at - begin.at, true), state);
  grips.forEach((each, index) => dragging(each, timeAt, moves[index], state));
  root.addEventListener("click", (event) => {
    if (!event.target.closest(".grip, .opening")) store.pan(timeAt(event) - (state.from + state.to) / 2);
  });
}

function grip(label, move, state) {
  const onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
    if (!step) return;
    event.preventDefault();
    move((step * state.result.duration_s) / 100);
  };
  return h("div", { class: "grip", role: "slider", tabindex: 0, "aria-label": label, "aria-valuemin": 0, onkeydown });
}

// Calls `move` with the time under the pointer, and with what was in view when it was pressed.
function dragging(element, timeAt, move, state) {
  let begin = null;
  element.addEventListener("pointerdown", (event) => {
    begin = { at: timeAt(event), from: state.from, to: state.to };
    element.setPointerCapture(event.pointerId);
    event.preventDefault();
    element.focus({ preventScroll: true });
  });
  element.addEventListener("pointermove", (event) => begin && move(timeAt(event), begin));
  for (const end of ["pointerup", "pointercancel"]) element.addEventListener(end, () => (begin = null));
}
