// Decision records: marks above the replicas they are of, and a list to search.

const SHOWN_AT_ONCE = 100;
const CARDS = 3; // decisions of one mark whose stories are shown: of the usual length these fill half a screen
const MARKS_APART = 5; // pixels between two marks, below which the later one is left out
const MARK_GAP = 3; // pixels between two numbered marks, below which they become one
const SHAPES = { up: "M0-6L5.500 4H-5.500Z", down: "M0 6L5.500-4H-5.500Z", same: "M0-5L5 0L0 5L-5 0Z", error: "M-4-4L4 4M4-4L-4 4" };
const DIRECTIONS = [["", "all"], ["changes", "changes"], ["up", "up"], ["down", "down"], ["error", "errors"]];

// Its time, behind its number where decisions are numbered. (`of` names its model where there are several.)
const when = (record) => `${record.number ? `${record.number} · ` : ""}${clock(record.at, true)}`;

// Decisions that are marked together, one below the other.
function decisionCards(records) {
  const card = (record) => {
    const head = [h("b", change(record)), chip(record.binding), chip(record.of), h("span", when(record))];
    return h("div", h("p.card-head", head), h("p", reasonOf(record)), story(record));
  };
  const more = records.length - CARDS;
  return h("div", records.slice(0, CARDS).map(card), more > 0 && h("p.note", `and ${more} more, in the list below`));
}

// Adds the marks of the decisions in view, of the panel's model where there are several. One of them is a tab stop; arrow
// keys lead to the others. Numbered decisions have pills; where some are numbered, those that changed nothing have ticks.
function drawMarks(svg, view, current, on, panel) {
  const groups = [];
  const { decisions, numbered, models } = view.result;
  const elsewhere = ({ model }) => model !== panel.model && models?.some((each) => each.model === model);
  let previous = -Infinity;
  decisions.forEach((record, index) => {
    if (record.at < view.from || record.at > view.to || elsewhere(record)) return;
    const x = view.x(record.at);
    const chosen = index === current;
    if (chosen) svg.append(path("chosen-at", `M${pixel(x)} 18V${panel.height}`));
    if (record.number) {
      svg.append(path("decided-at", `M${pixel(x)} 20V${panel.height}`));
      groups.push(merged([{ record, index, x }], groups, view));
    } else if (chosen || x - previous >= MARKS_APART) {
      previous = x;
      if (numbered) svg.append(path(`beat${chosen ? " chosen" : ""}`, `M${pixel(x)} 19v6`, `${clock(record.at)}: ${record.reason}`));
      else groups.push({ members: [{ record, index, x }], x, words: "" });
    }
  });
  for (const group of groups) svg.append(mark(group, current, on));
}

// A group of numbered decisions, together with those before it that it would touch, which are taken from `groups`.
function merged(members, groups, view) {
  const [first, last] = [members[0], members.at(-1)];
  const words = [...new Set([first.record.number, last.record.number])].join("–");
  const width = 18 + 6.8 * words.length;
  const x = Math.min(Math.max((first.x + last.x) / 2, GUTTER + width / 2 - 8), view.width + PAGE.margin - width / 2);
  const before = groups.at(-1);
  if (!before || before.x + before.width / 2 + MARK_GAP <= x - width / 2) return { members, words, width, x };
  return merged([...groups.pop().members, ...members], groups, view);
}

function mark({ members, x, width, words }, current, on) {
  const indices = members.map(({ index }) => index);
  const chosen = indices.includes(current);
  const kind = moved(members.at(-1).record);
  const told = members.map(({ record }) => `${clock(record.at, true)}, ${change(record)} replicas: ${record.reason}`);
  const attributes = {
    class: `mark ${kind}${chosen ? " chosen" : ""}`, transform: `translate(${pixel(x)} 9)`, role: "button",
    tabindex: chosen || (current === null && indices[0] === 0) ? 0 : -1, "data-index": chosen ? current : indices[0],
    "aria-label": told.join("; "), onpointerenter: () => on.show(...indices), onpointerleave: on.hide,
    onfocus: () => on.show(...(chosen ? [current] : indices)), onblur: on.hide, onclick: (event) => on.pin(event, ...indices),
  };
  if (!words) return s("g", attributes, s("rect.reach", { x: -7, y: -9, width: 14, height: 18 }), s("path", { d: SHAPES[kind] }));
  const left = -width / 2;
  const shape = s("path", { d: SHAPES[kind], transform: `translate(${pixel(8 + left)} 0) scale(.72)` });
  const pill = s("rect.reach.pill", { x: left, y: -8.5, width, height: 17, rx: 8.5 });
  return s("g", attributes, pill, shape, svgText("mark-name", 14 + left, 4, words));
}

// Every decision as a line that opens to its whole story, and a search through them.
function decisionList(root, data, store) {
  const { state } = store;
  const again = () => list();
  const search = h("input", { type: "search", placeholder: "search reasons, terms, times…", "aria-label": "Search the decisions", oninput: again });
  const direction = choice("Direction", DIRECTIONS, "", again);
  const binding = choice("Binding term", [], "", again);
  const count = h("span.count", { "aria-live": "polite" });
  const lines = h("ol.decision-list");
  const nothing = notice("");
  const bar = h("div.controls", search, direction, binding, count);
  root.append(bar, lines, nothing);
  let texts = [];
  let most = SHOWN_AT_ONCE;

  const fits = (record, index) =>
    search.value.toLowerCase().split(/\s+/).every((word) => texts[index].includes(word)) &&
    ["", moved(record), moved(record) !== "same" && "changes"].includes(direction.value) &&
    ["", record.binding].includes(binding.value);
  const list = (more = 0) => {
    most += more;
    const all = state.result.decisions;
    const found = [...all.keys()].filter((index) => fits(all[index], index));
    const every = `${whole(all.length)} ${all.length === 1 ? "decision" : "decisions"}`;
    count.textContent = found.length === all.length ? every : `${whole(found.length)} of ${whole(all.length)}`;
    nothing.hidden = found.length > 0;
    nothing.textContent = all.length ? "No decision fits." : PAGE.noDecisions;
    lines.replaceChildren(...found.slice(0, most).map((index) => decisionLine(store, index)));
    if (found.length > most) lines.append(h("li.more", button(`${whole(found.length - most)} more`, null, () => list(5 * SHOWN_AT_ONCE))));
  };
  const textOf = (record) => {
    const terms = (record.terms ?? []).flatMap(({ name, why }) => [name, why]);
    return [clock(record.at, true), change(record), record.binding, record.reason, record.counterfactual, ...terms].join(" ").toLowerCase();
  };
  const restart = () => {
    const records = state.result.decisions;
    texts = records.map(textOf);
    const names = [...new Set(records.map((record) => record.binding))].sort();
    binding.replaceChildren(h("option", { value: "" }, "any term"), ...names.map((value) => h("option", { value }, value)));
    // Records that changed nothing come every few seconds, and would drown the few that did.
    const changed = records.filter((record) => moved(record) !== "same").length;
    direction.value = changed && changed < records.length ? "changes" : "";
    bar.hidden = !records.length;
    list();
  };
  restart();
  store.subscribe((changed) => {
    if (changed.has("result")) restart();
    if (!changed.has("chosen")) return;
    for (const each of lines.children) each.classList.toggle("chosen", each.dataset.index === String(state.chosen));
    const chosen = lines.querySelector(".chosen");
    // Within the list only: the page must not move under the reader's pointer.
    if (chosen) lines.scrollTop = chosen.offsetTop - lines.clientHeight / 3;
  });
}

function decisionLine(store, index) {
  const record = store.state.result.decisions[index];
  const seen = () => {
    store.look(record.at - PAGE.seenAround, record.at + PAGE.seenAround);
    store.choose(index);
    document.getElementById("timeline").scrollIntoView({ block: "start", behavior: "smooth" });
  };
  const ontoggle = () => {
    if (details.childElementCount === 1) details.append(h("div.story", story(record), button("Show on the timeline", null, seen)));
  };
  const parts = [h("span.at", when(record)), h(`span.move.${moved(record)}`, change(record)), chip(record.binding) || h("span")];
  const reason = h("span.reason", chip(record.of), record.of && " ", reasonOf(record));
  const details = h("details", { ontoggle }, h("summary", parts, reason));
  return h("li", { "data-index": index, class: store.state.chosen === index ? "chosen" : null }, details);
}
