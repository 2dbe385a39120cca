// What is looked at lives in one place, and who shows it is told of changes.

function storeOf(results, main) {
  const listeners = [];
  const changed = new Set();
  const state = { result: results[main], compared: null, from: 0, to: results[main].duration_s, chosen: null };
  const store = {
    state,
    results,
    subscribe: (listener) => listeners.push(listener),
    set(patch) {
      if (!changed.size) {
        requestAnimationFrame(() => {
          const seen = new Set(changed);
          changed.clear();
          for (const listener of listeners) listener(seen);
        });
      }
      for (const [name, value] of Object.entries(patch)) {
        state[name] = value;
        changed.add(name);
      }
    },
    // Brings a part of it into view; as wide as asked where `keep` is set and an end is in the way.
    look(from, to, keep = false) {
      const { duration_s: duration } = state.result;
      const wide = Math.min(Math.max(to - from, Math.min(LEAST_SPAN, duration)), duration);
      const begin = keep || to - from < wide ? Math.min(Math.max(from, 0), duration - wide) : Math.max(from, 0);
      store.set({ from: begin, to: keep ? begin + wide : Math.min(Math.max(to, begin + wide), duration) });
    },
    pan: (by) => store.look(state.from + by, state.to + by, true),
    show(index) {
      const result = results[index];
      store.set({ result, chosen: null, from: 0, to: result.duration_s, compared: state.compared === result ? null : state.compared });
    },
    // Chooses a decision, and brings it into view if it is not.
    choose(index) {
      const { at } = state.result.decisions[index];
      store.set({ chosen: index });
      if (at < state.from || at > state.to) store.pan(at - (state.from + state.to) / 2);
    },
  };
  return store;
}
