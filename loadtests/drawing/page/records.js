// Decision records: what changed, and the story of why.

function moved(record) {
  if (record.kind === "error") return "error";
  const to = record.mode === "advise" ? record.wanted : record.new_target;
  return to > record.old_target ? "up" : to < record.old_target ? "down" : "same";
}

function change(record) {
  return record.mode === "advise"
    ? `${record.old_target} (${record.wanted})`
    : `${record.old_target} → ${record.new_target}`;
}

const SHAPES = {
  up: "M0-6L5.500 4H-5.500Z",
  down: "M0 6L5.500-4H-5.500Z",
  same: "M0-5L5 0L0 5L-5 0Z",
  error: "M-4-4L4 4M4-4L-4 4",
};

// Its time, behind its number where decisions are numbered. (`of` names its model where there are several.)
const when = (record) => `${record.number ? `${record.number} · ` : ""}${clock(record.at, true)}`;

// What each term asked for, as bars of one scale, the binding one marked.
function termTable(record) {
  const terms = [...(record.terms ?? [])].sort((a, b) => b.replicas - a.replicas);
  if (!terms.length) return null;
  const most = Math.max(1, ...terms.map((term) => term.replicas));
  return h(
    "table",
    { class: "terms" },
    h("thead", {}, h("tr", {}, h("th", {}, "term"), h("th", { class: "number" }, "asks for"), h("th", {}, "because"))),
    h(
      "tbody",
      {},
      ...terms.map((term) =>
        h(
          "tr",
          { class: term.name === record.binding ? "binding" : null },
          h("td", {}, term.name),
          h("td", { class: "number" }, h("i", { class: "bar", style: `--share:${(term.replicas / most).toFixed(3)}` }), whole(term.replicas)),
          h("td", {}, term.why),
        ),
      ),
    ),
  );
}

function without(reason, binding) {
  return reason.startsWith(`${binding}: `) ? reason.slice(binding.length + 2) : reason;
}

function story(record) {
  const clamps = (record.clamps ?? []).map((clamp) => h("p", { class: "held-back" }, h("b", {}, `held back by ${clamp.name}: `), clamp.effect));
  const notes = (record.notes ?? []).map((note) => h("p", { class: "note" }, note));
  return [
    record.counterfactual ? h("p", { class: "counterfactual" }, h("b", {}, "otherwise: "), record.counterfactual) : null,
    ...clamps,
    termTable(record),
    ...notes,
  ];
}

function decisionCard(record) {
  return h(
    "div",
    {},
    h("p", { class: "card-head" }, h("b", {}, change(record)), h("span", { class: "chip" }, record.binding), record.of ? h("span", { class: "chip" }, record.of) : null, h("span", {}, when(record))),
    h("p", {}, without(record.reason, record.binding)),
    ...story(record),
  );
}

// Decisions that are marked together, one below the other.
function decisionCards(records) {
  const most = 3; // of the usual length these fill half a screen
  const more = records.length > most ? [h("p", { class: "note" }, `and ${records.length - most} more, in the list below`)] : [];
  return h("div", {}, ...records.slice(0, most).map(decisionCard), ...more);
}
