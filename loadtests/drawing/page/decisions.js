// Every decision as a line that opens to its whole story, and a search through them.

const SHOWN_AT_ONCE = 100;
const CHANGES = "changes";

function decisions(root, store) {
  const { state } = store;
  const search = h("input", {
    type: "search",
    placeholder: "search reasons, terms, times…",
    "aria-label": "Search the decisions",
    oninput: () => list(),
  });
  const direction = h(
    "select",
    { "aria-label": "Direction", onchange: () => list() },
    ...[["", "all"], [CHANGES, "changes"], ["up", "up"], ["down", "down"], ["error", "errors"]].map(([value, name]) => h("option", { value }, name)),
  );
  const binding = h("select", { "aria-label": "What was binding", onchange: () => list() });
  const count = h("span", { class: "count", "aria-live": "polite" });
  const lines = h("ol", { class: "decision-list" });
  const nothing = h("p", { class: "notice", hidden: true });
  const bar = h("div", { class: "controls" }, search, direction, binding, count);
  root.append(bar, lines, nothing);
  let texts = [];
  let most = SHOWN_AT_ONCE;

  const list = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = state.result.decisions.flatMap((record, index) => {
      const fits =
        words.every((word) => texts[index].includes(word)) &&
        (!direction.value || moved(record) === direction.value || (direction.value === CHANGES && moved(record) !== "same")) &&
        (!binding.value || record.binding === binding.value);
      return fits ? [index] : [];
    });
    const total = state.result.decisions.length;
    count.textContent = found.length === total ? `${whole(total)} ${total === 1 ? "decision" : "decisions"}` : `${whole(found.length)} of ${whole(total)}`;
    nothing.hidden = found.length > 0;
    nothing.textContent = "No decision fits.";
    const rows = found.slice(0, most).map((index) => line(store, index));
    if (found.length > most) {
      const more = () => {
        most += 5 * SHOWN_AT_ONCE;
        list();
      };
      rows.push(h("li", { class: "more" }, h("button", { type: "button", onclick: more }, `${whole(found.length - most)} more`)));
    }
    lines.replaceChildren(...rows);
  };
  const restart = () => {
    const records = state.result.decisions;
    const terms = (record) => (record.terms ?? []).map((term) => `${term.name} ${term.why}`).join(" ");
    texts = records.map((record) =>
      `${clock(record.at, true)} ${change(record)} ${record.binding} ${record.reason} ${record.counterfactual} ${terms(record)}`.toLowerCase(),
    );
    const names = [...new Set(records.map((record) => record.binding))].sort();
    binding.replaceChildren(h("option", { value: "" }, "any reason"), ...names.map((name) => h("option", { value: name }, name)));
    // Records that changed nothing come every few seconds, and would drown the few that did.
    const changed = records.filter((record) => moved(record) !== "same").length;
    direction.value = changed && changed < records.length ? CHANGES : "";
    bar.hidden = !records.length;
    if (records.length) list();
    else {
      lines.replaceChildren();
      nothing.hidden = false;
      nothing.textContent = NO_DECISIONS;
    }
  };
  restart();
  store.subscribe((changed) => {
    if (changed.has("result")) restart();
    if (!changed.has("chosen")) return;
    for (const each of lines.querySelectorAll(".chosen")) each.classList.remove("chosen");
    const chosen = lines.querySelector(`[data-index="${state.chosen}"]`);
    if (!chosen) return;
    chosen.classList.add("chosen");
    // Within the list only: the page must not move under the reader's pointer.
    lines.scrollTop = chosen.offsetTop - lines.clientHeight / 3;
  });
}

function line(store, index) {
  const record = store.state.result.decisions[index];
  const details = h(
    "details",
    {
      ontoggle: () => {
        if (!details.open || details.childElementCount > 1) return;
        const seen = () => {
          store.look(record.at - SEEN_AROUND, record.at + SEEN_AROUND);
          store.choose(index);
          document.getElementById("timeline").scrollIntoView({ block: "start", behavior: "smooth" });
        };
        details.append(h("div", { class: "story" }, ...story(record).filter(Boolean), h("button", { type: "button", onclick: seen }, "Show on the timeline")));
      },
    },
    h(
      "summary",
      {},
      h("span", { class: "at" }, when(record)),
      h("span", { class: `move ${moved(record)}` }, change(record)),
      h("span", { class: "chip" }, record.binding),
      h("span", { class: "reason" }, record.of ? h("span", { class: "chip" }, record.of) : null, record.of ? " " : null, without(record.reason, record.binding)),
    ),
  );
  return h("li", { "data-index": index, class: store.state.chosen === index ? "chosen" : null }, details);
}
