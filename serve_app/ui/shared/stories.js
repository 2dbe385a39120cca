// Decision records in words: what changed, why, and what each term asked for.

function moved({ kind, mode, wanted, old_target: old, new_target: target }) {
  const to = mode === "advise" ? wanted : target;
  return kind === "error" || kind === "loss" ? "error" : to > old ? "up" : to < old ? "down" : "same";
}

const change = ({ mode, wanted, old_target: old, new_target: target }) => (mode === "advise" ? `${old} (${wanted})` : `${old} → ${target}`);
const reasonOf = ({ reason, binding }) => (reason.startsWith(`${binding}: `) ? reason.slice(binding.length + 2) : reason);

// What each term asked for, as bars of one scale, the binding one marked.
function termTable({ terms: told, binding }) {
  const terms = [...(told ?? [])].sort((a, b) => b.replicas - a.replicas);
  const most = Math.max(1, ...terms.map((term) => term.replicas));
  const line = ({ name, replicas, why }) => {
    const bar = h("i.bar", { style: `--share:${(replicas / most).toFixed(3)}` });
    return h("tr", { class: name === binding ? "binding" : null }, h("td", name), h("td.number", bar, whole(replicas)), h("td", why));
  };
  const head = h("thead", h("tr", h("th", "term"), h("th.number", "asks for"), h("th", "because")));
  return terms.length > 0 && h("table.terms", head, h("tbody", terms.map(line)));
}

function story(record) {
  const said = (kind, name, words) => h(`p.${kind}`, name && h("b", `${name}: `), words);
  return [
    record.counterfactual && said("counterfactual", moved(record) === "error" ? "next" : "otherwise", record.counterfactual),
    ...(record.clamps ?? []).map((clamp) => said("held-back", `limited by ${clamp.name}`, clamp.effect)),
    termTable(record), ...(record.notes ?? []).map((note) => said("note", "", note)),
  ];
}
