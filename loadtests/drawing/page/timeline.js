// The timeline: panels over one axis of time, through which one moves by dragging, by keys or by the overview.

const CARD_TOP = 26;
const OVERVIEW_HEIGHT = 46;
const GRIP = 9; // pixels
const HELP =
  "Drag across the panels to zoom in, double-click to see all. Keys: left and right go through the decisions, " +
  "plus and minus zoom, shift with an arrow moves, 0 shows all, escape closes.";

// What panels need to know of the part in view.
function viewOf(state, full) {
  const { from, to } = state;
  const width = full - PAGE.margin;
  return { ...state, width, x: linear(from, to, GUTTER, width), span: (track) => spanOf(track, from, to) };
}

function timeline(root, data, store) {
  const { state } = store;
  let panels = PAGE.panels(state);
  if (!panels[0].layers[0].values.length) return root.append(notice(PAGE.nothing));
  const [crosshair, brushed, card] = ["crosshair", "brushed", "floating"].map((kind) => h(`div.${kind}`, { hidden: true }));
  const said = h("p.unseen", { "aria-live": "polite" });
  const figures = panels.map(() => h("figure.panel"));
  const axis = h("div.axis");
  const named = { tabindex: 0, role: "group", "aria-label": "Timeline", "aria-describedby": "timeline-help" };
  const chart = h("div.chart", named, figures, axis, crosshair, brushed, card);
  const strip = h("div.overview");
  root.append(controls(store), chart, strip, said, h("p.help", { id: "timeline-help" }, HELP));

  let view = null;
  let pinned = false;
  const show = (content, x, top, tone) => {
    card.className = `floating ${tone}`;
    float(card, content, chart.clientWidth, x, top);
  };
  const hide = () => {
    if (!pinned) card.hidden = crosshair.hidden = true;
  };
  const unpin = () => {
    pinned = false;
    hide();
  };
  // Where a decision's mark is: there may be a panel for each model.
  const topOf = ({ model }) => {
    const marked = panels.filter((panel) => panel.decided);
    return figures[panels.indexOf(marked.find((panel) => panel.model === model) ?? marked[0])].offsetTop;
  };
  const on = {
    hide,
    show(...indices) {
      if (pinned) return;
      const records = indices.map((index) => state.result.decisions[index]);
      crosshair.hidden = true;
      show(decisionCards(records), view.x(records[0].at), topOf(records[0]) + CARD_TOP + PAGE.markLane, "decision");
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

  const redraw = drawnToWidth(chart, (width) => {
    view = viewOf(state, width);
    const focused = chart.contains(document.activeElement) ? document.activeElement.dataset.index : undefined;
    panels.forEach((panel, order) => {
      const { title, unit, height, decided: marked } = panel;
      const svg = drawing(width, height, { role: "group", "aria-label": `${title} ${unit}`.trim() });
      drawPanel(svg, view, panel);
      if (marked) drawMarks(svg, view, state.chosen, on, panel);
      const caption = h("figcaption", h("b", title), unit && h("span.unit", unit), keysOf(panel));
      figures[order].replaceChildren(caption, svg);
    });
    axis.replaceChildren(timeAxis(view));
    if (focused !== undefined) focus(focused);
  });
  overview(strip, store);
  store.subscribe((changed) => {
    if (changed.has("result") || changed.has("compared")) panels = PAGE.panels(state);
    if (changed.has("result") || changed.has("from")) {
      pinned = false;
      card.hidden = true;
    }
    redraw();
    const record = state.result.decisions[state.chosen];
    if (record && changed.has("chosen")) said.textContent = `${clock(record.at, true)}: ${change(record)}, ${record.reason}`;
  });

  const timeAt = (event) => view.x.invert(event.clientX - chart.getBoundingClientRect().left);
  let dragged = null;
  const far = (event) => dragged && Math.abs(event.clientX - dragged.x) > 4;
  const release = () => {
    dragged = null;
    brushed.hidden = true;
  };
  const handlers = {
    pointerdown(event) {
      if (event.button !== 0 || event.target.closest(".mark, .floating")) return;
      unpin();
      dragged = { from: timeAt(event), x: event.clientX };
      chart.setPointerCapture(event.pointerId);
    },
    pointermove(event) {
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
    },
    pointerup(event) {
      if (far(event)) store.look(...[dragged.from, timeAt(event)].sort((a, b) => a - b));
      release();
    },
    pointercancel: release,
    pointerleave: hide,
    dblclick: store.all,
    keydown(event) {
      const { index } = event.target.dataset;
      const pressed = index !== undefined && [" ", "Enter"].includes(event.key);
      const act = pressed ? () => on.pin(event, Number(index)) : actOf(store, event);
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
    },
  };
  for (const [name, handler] of Object.entries(handlers)) chart.addEventListener(name, handler);
}

// What a key does on the timeline, if anything.
function actOf(store, event) {
  const { from, to, chosen, result } = store.state;
  const last = result.decisions.length - 1;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.altKey || event.ctrlKey || event.metaKey) return null;
  if (step && event.shiftKey) return () => store.pan((step * (to - from)) / 5);
  const next = (chosen ?? (step > 0 ? -1 : last + 1)) + step;
  if (step && last >= 0) return () => store.choose(Math.max(0, Math.min(next, last)));
  const closer = () => store.zoom(0.5);
  return { "+": closer, "=": closer, "-": () => store.zoom(2), 0: store.all }[event.key];
}

// Which result is drawn, with which other one beside it, and what part of it.
function controls(store) {
  const { results, state } = store;
  const named = results.map((result, index) => [index, shortened(result.policy ?? "", 40)]);
  const shown = choice("Policy", named, results.indexOf(state.result), (index) => store.show(results[index]));
  const compare = (index) => store.set({ compared: results[index] ?? null });
  const other = choice("Compare with", [["", "nothing"], ...named], "", compare);
  const choices = [h("label", "policy ", shown), h("label", "compare with ", other)];
  const buttons = [button("−", "Zoom out", () => store.zoom(2)), button("+", "Zoom in", () => store.zoom(0.5)), button("All", "Show all", store.all)];
  return h("div.controls", results.length > 1 && choices, h("span.buttons", buttons));
}

// All of it in a small strip, with a window on the part in view that can be moved and stretched.
function overview(root, store) {
  const { state } = store;
  const moves = [(at, { to }) => store.look(at, to), (at, { from }) => store.look(from, at)];
  const ends = () => [state.from, state.to];
  const grips = ["Start", "End"].map((end, index) => {
    const onkeydown = (event) => {
      const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
      if (!step) return;
      event.preventDefault();
      moves[index](ends()[index] + (step * state.result.duration_s) / 100, state);
    };
    return h("div.grip", { role: "slider", tabindex: 0, "aria-label": `${end} of the part in view`, "aria-valuemin": 0, onkeydown });
  });
  const [picture, before, after, opening] = ["picture", "shade", "shade", "opening"].map((kind) => h(`div.${kind}`));
  root.append(picture, before, after, opening, ...grips);
  let x = null;

  const place = () => {
    const { duration_s: duration } = state.result;
    const stretch = (part, from, to) => (part.style.cssText = `left:${from}px;width:${to - from}px`);
    const [left, right] = ends().map(x);
    stretch(before, GUTTER, left);
    stretch(after, right, Math.max(right, x(duration)));
    stretch(opening, left, right);
    ends().forEach((at, index) => {
      const words = { "aria-valuenow": Math.round(at), "aria-valuetext": clock(at, true), "aria-valuemax": Math.round(duration) };
      setAll(grips[index], { ...words, style: `left: ${x(at) - GRIP / 2}px;` });
    });
  };
  const redraw = drawnToWidth(root, (width) => {
    const view = viewOf({ ...state, from: 0, to: state.result.duration_s }, width);
    x = view.x;
    const { name, values, track } = PAGE.panels(state)[0].layers[0];
    const y = linear(0, Math.max(greatest(values), 1e-9), OVERVIEW_HEIGHT - 7, 3);
    const trouble = ([from, to]) => `M${pixel(x(from))} ${OVERVIEW_HEIGHT - 3}H${pixel(Math.max(x(to), x(from) + 2))}`;
    const svg = drawing(width, OVERVIEW_HEIGHT, decorative);
    svg.append(path(`area ${name}`, boxes(view.span(track), null, values, x, y)));
    svg.append(path("troubled", PAGE.troubled(state.result).map(trouble).join("")));
    picture.replaceChildren(svg);
    place();
  });
  store.subscribe((changed) => (changed.has("result") ? redraw() : place()));

  const timeAt = (event) => x.invert(event.clientX - root.getBoundingClientRect().left);
  const slide = (at, begin) => store.look(begin.from + at - begin.at, begin.to + at - begin.at, true);
  [opening, ...grips].forEach((each, index) => dragging(each, timeAt, [slide, ...moves][index], state));
  root.addEventListener("click", (event) => {
    if (!event.target.closest(".grip, .opening")) store.center(timeAt(event));
  });
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
