// What the pages have in common: the sections, what is in view, and the light and the dark ground.
//
// A page says what it is in PAGE: `sections`, each [id, title, draw], or a list of these that stand side by side; what
// its timeline shows: `panels(state)`, `troubled(result)` (spans of time, marked in the overview), `nothing` (said of a
// result without any); and figures: `hours` (see `clock`), `margin` and `markLane` (pixels right of the time axis, and
// for marks), `leastSpan` (seconds in view at most zoom), `seenAround` (seconds shown around a decision), `noDecisions`.

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const store = storeOf((data.results ?? [data]).map(PAGE.prepare), data.main ?? 0);
  const drawn = [];
  const section = ([id, title, draw]) => {
    const heading = h("h2", { id: `${id}-title`, class: id === "headline" ? "unseen" : null }, title);
    const root = h("section", { id, "aria-labelledby": heading.id }, heading);
    drawn.push(() => draw(root, data, store));
    return root;
  };
  const beside = (each) => (Array.isArray(each[0]) ? h("div.pair", each.map(section)) : section(each));
  document.querySelector("main").append(...PAGE.sections.map(beside));
  // The button's words are the style's, so that they follow the ground in force.
  const [page, theme] = [document.documentElement, document.getElementById("theme")];
  theme.addEventListener("click", () => {
    const offered = getComputedStyle(page).getPropertyValue("--ground-offered");
    page.dataset.theme = offered.includes("Dark") ? "dark" : "light";
  });
  theme.hidden = false;
  // In the document, because what is drawn asks how wide it is.
  for (const draw of drawn) draw();
}

// What is looked at lives in one place, which tells its listeners of changes once a frame.
function storeOf(results, main) {
  const listeners = [];
  const changed = new Set();
  const state = { result: results[main], compared: null, from: 0, to: results[main].duration_s, chosen: null };
  const tell = () => {
    const seen = new Set(changed);
    changed.clear();
    for (const listener of listeners) listener(seen);
  };
  const store = {
    state,
    results,
    subscribe: (listener) => listeners.push(listener),
    set(patch) {
      if (!changed.size) requestAnimationFrame(tell);
      Object.assign(state, patch);
      for (const name of Object.keys(patch)) changed.add(name);
    },
    // Brings a span into view; as wide as asked where `keep` is set and an end is in the way.
    look(from, to, keep = false) {
      const { duration_s: duration } = state.result;
      const wide = Math.min(Math.max(to - from, Math.min(PAGE.leastSpan, duration)), duration);
      const begin = Math.max(keep || to - from < wide ? Math.min(from, duration - wide) : from, 0);
      store.set({ from: begin, to: keep ? begin + wide : Math.min(Math.max(to, begin + wide), duration) });
    },
    all: () => store.look(0, state.result.duration_s),
    pan: (by) => store.look(state.from + by, state.to + by, true),
    center: (at) => store.pan(at - (state.from + state.to) / 2),
    // Shows so many times the present span, around the same middle.
    zoom(by) {
      const [middle, half] = [(state.from + state.to) / 2, ((state.to - state.from) * by) / 2];
      store.look(middle - half, middle + half);
    },
    show(result) {
      const compared = state.compared === result ? null : state.compared;
      store.set({ result, chosen: null, from: 0, to: result.duration_s, compared });
    },
    // Chooses a decision, and brings it into view if it is not.
    choose(index) {
      const { at } = state.result.decisions[index];
      store.set({ chosen: index });
      if (at < state.from || at > state.to) store.center(at);
    },
  };
  return store;
}
