// Tables: latencies, what became of the requests, what went wrong, and what was run where.

function latencies(root, data) {
  const named = ["p50", "p90", "p95", "p99", "max"];
  const rows = data.latencies.map((each) =>
    h("tr", {}, h("th", { scope: "row" }, each.name), cell(whole(each.count)), cell(each.never ? whole(each.never) : NOTHING), ...["mean", ...named].map((key) => cell(latencyWords(each[key])))),
  );
  root.append(
    table("Latencies", ["", "count", "never", "mean", "P50", "P90", "P95", "P99", "max"], rows),
    h("p", { class: "help" }, `From intended times on, errors included: what never came is longer than all that did. ITL is the time between two pieces of one answer. ${data.left_waiting}`),
  );
}

const OUTCOME_NAMES = ["requests", "answered", "left", "rejected", "failed", "broken", "abandoned", "retried", "cold"];

function outcomes(root, data) {
  const line = (name, counts, kind = null) => h("tr", { class: kind }, h("th", { scope: "row" }, shortened(name, 40)), ...OUTCOME_NAMES.map((key) => cell(counts[key] ? whole(counts[key]) : NOTHING, ERROR_OUTCOMES.includes(key) && counts[key] ? "number bad" : "number")));
  const group = (words, counts) => (Object.keys(counts).length > 1 ? [h("tr", { class: "group" }, h("th", { scope: "rowgroup", colspan: OUTCOME_NAMES.length + 1 }, words)), ...Object.entries(counts).map(([name, found]) => line(name, found))] : []);
  root.append(
    table("What became of the requests", ["", ...OUTCOME_NAMES.slice(0, -1), "held"], [line("all", data.counts.all, "main"), ...group("by kind", data.counts.kinds), ...group("by model", data.counts.models)]),
    h("p", { class: "help" }, "Each request has one outcome; retried and held requests are among them."),
  );
}

function troubles(root, data) {
  root.hidden = !data.troubles.length;
  if (root.hidden) return;
  const rows = data.troubles.map((each) => h("li", {}, h("b", {}, `${whole(each.count)} ×`), h("span", { class: "chip" }, each.status ? `${each.outcome} ${each.status}` : each.outcome), h("span", { class: "trouble-words" }, each.words || "(nothing was said)"), h("span", { class: "trouble-at" }, `first at ${clock(each.first_s)}`)));
  root.append(h("ul", { class: "troubles" }, ...rows));
}

function facts(root, data) {
  root.append(h("dl", { class: "entries" }, ...data.run.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
}
