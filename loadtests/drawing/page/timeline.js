// The timeline: panels over one axis of time, through which one moves by dragging, by keys or by the overview.
//
// A page says what is in it: `nothingToShow(result)`, `panelsOf(result)`, `viewOf(state, width)`, `readout(view, at)`,
// `drawMarks(svg, view, height, chosen, on, panel)`, `controls(store)`, and `drawOverview(svg, state, x)`.

const CARD_TOP = 26;

function timeline(root, store) {
  const { state } = store;
  const missing = nothingToShow(state.result);
  if (missing) {
    root.append(h("p", { class: "notice" }, missing));
    return;
  }
  const crosshair = h("div", { class: "crosshair", hidden: true });
  const brushed = h("div", { class: "brushed", hidden: true });
  const card = h("div", { class: "floating", hidden: true });
  const said = h("p", { class: "unseen", "aria-live": "polite" });
  const panels = panelsOf(state.result);
  const figures = panels.map(() => h("figure", { class: "panel" }));
  const axis = h("div", { class: "axis" });
  const chart = h(
    "div",
    {
      class: "chart",
      tabindex: 0,
      role: "group",
      "aria-label": "Timeline",
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
  // Where its marks are: a page may have a panel for each model.
  const panelOf = (record) => {
    const decided = panels.findIndex((panel) => panel.decided);
    const own = panels.findIndex((panel) => panel.decided && panel.model === record.model);
    return own >= 0 ? own : Math.max(0, decided);
  };
  const showDecision = (...indices) => {
    if (pinned) return;
    const records = indices.map((index) => state.result.decisions[index]);
    crosshair.hidden = true;
    show(decisionCards(records), view.x(records[0].at), figures[panelOf(records[0])].offsetTop + CARD_TOP + MARKER_LANE, "decision");
  };
  const on = {
    show: showDecision,
    hide,
    pin(event, ...indices) {
      event.stopPropagation();
      pinned = false;
      showDecision(...indices);
      pinned = true;
      store.set({ chosen: indices[0] });
    },
  };
  const unpin = () => {
    pinned = false;
    hide();
  };

  const draw = (width) => {
    view = viewOf(state, width);
    const focused = chart.contains(document.activeElement) ? document.activeElement.dataset.index : undefined;
    panels.forEach((panel, order) => {
      const height = panel.tall ? panel.tall(view) : panel.height;
      const unit = panel.unit ? h("span", { class: "unit" }, panel.unit) : null;
      const keys = panel.keys(view).map(([kind, name]) => h("span", { class: "key" }, swatch(kind), name));
      const svg = drawing(width, height, { role: "group", "aria-label": `${panel.title} ${panel.unit}`.trim() });
      panel.draw(svg, view, height);
      if (panel.decided) drawMarks(svg, view, height, state.chosen, on, panel);
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
      on.pin(event, Number(index));
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
