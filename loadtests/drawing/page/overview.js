// All of it in a small strip, with a window on the part in view that can be moved and stretched.

const OVERVIEW_HEIGHT = 46;
const GRIP = 9; // pixels

function overview(root, store) {
  const { state } = store;
  const grips = ["from", "to"].map((end) => grip(end, store));
  const opening = h("div", { class: "opening" });
  const shades = [h("div", { class: "shade" }), h("div", { class: "shade" })];
  const picture = h("div", {});
  root.append(picture, ...shades, opening, ...grips);
  let x = null;

  const place = () => {
    const [left, right] = [x(state.from), x(state.to)];
    shades[0].style.cssText = `left:${GUTTER}px;width:${left - GUTTER}px`;
    shades[1].style.cssText = `left:${right}px;width:${Math.max(0, x(state.result.duration_s) - right)}px`;
    opening.style.cssText = `left:${left}px;width:${right - left}px`;
    grips[0].style.left = `${left - GRIP / 2}px`;
    grips[1].style.left = `${right - GRIP / 2}px`;
    grips.forEach((each, index) => {
      const at = index ? state.to : state.from;
      each.setAttribute("aria-valuenow", Math.round(at));
      each.setAttribute("aria-valuetext", clock(at, true));
      each.setAttribute("aria-valuemax", Math.round(state.result.duration_s));
    });
  };
  const draw = (width) => {
    x = linear(0, state.result.duration_s, GUTTER, viewOf(state, width).width);
    const svg = drawing(width, OVERVIEW_HEIGHT, { "aria-hidden": "true" });
    drawOverview(svg, state, x);
    picture.replaceChildren(svg);
    place();
  };
  drawnToWidth(root, draw);
  store.subscribe((changed) => {
    if (changed.has("result")) draw(Math.floor(root.clientWidth));
    else place();
  });

  const timeAt = (event) => x.invert(event.clientX - root.getBoundingClientRect().left);
  dragging(opening, timeAt, (at, start) => store.look(start.from + at - start.at, start.to + at - start.at, true), state);
  grips.forEach((each, index) =>
    dragging(each, timeAt, (at, start) => (index ? store.look(start.from, at) : store.look(at, start.to)), state),
  );
  root.addEventListener("click", (event) => {
    if (event.target.closest(".grip, .opening")) return;
    store.pan(timeAt(event) - (state.from + state.to) / 2);
  });
}

function grip(end, store) {
  const { state } = store;
  return h("div", {
    class: "grip",
    role: "slider",
    tabindex: 0,
    "aria-label": end === "from" ? "Start of the part in view" : "End of the part in view",
    "aria-valuemin": 0,
    onkeydown: (event) => {
      const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
      if (!step) return;
      event.preventDefault();
      const by = (step * state.result.duration_s) / 100;
      if (end === "from") store.look(state.from + by, state.to);
      else store.look(state.from, state.to + by);
    },
  });
}

// Calls `move` with the time under the pointer, and with what was in view when it was pressed.
function dragging(element, timeAt, move, state) {
  let start = null;
  element.addEventListener("pointerdown", (event) => {
    start = { at: timeAt(event), from: state.from, to: state.to };
    element.setPointerCapture(event.pointerId);
    event.preventDefault();
    element.focus({ preventScroll: true });
  });
  element.addEventListener("pointermove", (event) => {
    if (start) move(timeAt(event), start);
  });
  for (const end of ["pointerup", "pointercancel"]) element.addEventListener(end, () => (start = null));
}
