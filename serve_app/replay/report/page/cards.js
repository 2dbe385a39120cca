// What floats over the timeline: the values at the pointer, and the story of one decision.

function row(kind, name, value, tone = "") {
  return h("tr", { class: tone }, h("td", {}, swatch(kind), name), h("td", {}, value));
}

function readout(view, at) {
  const { timeline, windows, targets } = view.result;
  const index = lastUpTo(timeline.at_s, at);
  const minute = Math.min(Math.floor(at / windows.seconds), windows.requests.length - 1);
  const now = (name) => timeline[name][index];
  const rows = [
    row("arrivals", "arrivals", `${digits(now("arrivals_rps"))}/s`),
    row("wanted", "wanted", whole(now("wanted"))),
    row("target", "target", whole(now("target"))),
    row("ready", "ready", whole(now("ready"))),
  ];
  if (now("starting") > 0) rows.push(row("starting", "starting", whole(now("starting"))));
  if (now("draining") > 0) rows.push(row("draining", "draining", whole(now("draining"))));
  rows.push(row("queued", "queued", whole(now("queued") - now("held"))));
  if (now("held") > 0) rows.push(row("held", "held", whole(now("held"))));
  if (view.compared) {
    const there = lastUpTo(view.compared.timeline.at_s, at);
    rows.push(row("compared", `ready, ${shortened(view.compared.policy, 18)}`, whole(view.compared.timeline.ready[there])));
  }
  if (minute >= 0 && windows.requests[minute] > 0) {
    const judged = (name, kind, value, target) =>
      row(kind, name, `${seconds(value)} ${value <= target ? "✓" : "✗"}`, value <= target ? "" : "over");
    const met = windows.attained[minute] > 0;
    const at95 = `P${targets.percentile}`;
    rows.push(
      h("tr", { class: "minute-head" }, h("th", { colspan: 2 }, `minute ${clock(minute * windows.seconds)}: ${whole(windows.requests[minute])} requests`)),
      judged(`TTFT ${at95}`, "ttft", windows.ttft_p95_s[minute], targets.ttft_s),
      judged(`ITL ${at95}`, "itl", windows.itl_p95_s[minute], targets.itl_s),
      row(met ? "ok" : "missed", "SLO", met ? "attained" : "missed", met ? "" : "over"),
    );
    if (windows.cold[minute] > 0) rows.push(row("cold", "held for a cold start", whole(windows.cold[minute])));
    if (windows.rejected[minute] > 0) rows.push(row("missed", "rejected", whole(windows.rejected[minute]), "over"));
  }
  return h("div", {}, h("b", {}, clock(at, true)), h("table", {}, h("tbody", {}, ...rows)));
}

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
    h("p", { class: "card-head" }, h("b", {}, change(record)), h("span", { class: "chip" }, record.binding), h("span", {}, clock(record.at, true))),
    h("p", {}, without(record.reason, record.binding)),
    ...story(record),
  );
}

// Puts a floating element beside `x`, on the side that has room for it.
function place(card, width, x, top) {
  const own = card.offsetWidth;
  const right = x + 14;
  const left = right + own <= width ? right : Math.max(0, Math.min(x - 14 - own, width - own));
  card.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}
