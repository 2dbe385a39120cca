// Tables: latencies, outcomes, errors, and costs.

function latencies(root, data) {
  const cells = (each) => [whole(each.count), each.never ? whole(each.never) : NOTHING, ...["mean", "p50", "p90", "p95", "p99", "max"].map((name) => latencyWords(each[name]))];
  root.append(
    table("Latencies", ["", "count", "never", "mean", "P50", "P90", "P95", "P99", "max"], data.latencies.map((each) => tableRow(each.name, cells(each)))),
    help(`Latencies count from the intended time and include errors: an answer that never came is longer than all others. ITL is the time between two pieces of one answer. ${data.left_waiting}`),
  );
}

function outcomes(root, { counts }) {
  const names = ["requests", "answered", "left", "rejected", "failed", "broken", "abandoned", "retried", "cold"];
  const cell = (found) => (name) => (found[name] ? [whole(found[name]), ERROR_OUTCOMES.includes(name) ? "bad" : ""] : NOTHING);
  const line = (name, found, kind) => tableRow(shortened(name, 40), names.map(cell(found)), kind);
  const group = (words, all) => {
    const head = h("tr", { class: "group" }, h("th", { scope: "rowgroup", colspan: names.length + 1 }, words));
    return Object.keys(all).length > 1 ? [head, ...Object.entries(all).map(([name, found]) => line(name, found))] : [];
  };
  root.append(
    table("Outcomes of the requests", ["", ...names.slice(0, -1), "held"], [line("all", counts.all, "main"), ...group("by kind", counts.kinds), ...group("by model", counts.models)]),
    help("Each request has one outcome; retried and held requests are counted there as well."),
  );
}

function troubles(root, data) {
  root.hidden = !data.troubles.length;
  const line = ({ count, status, outcome, words, first_s: first }) => {
    const said = h("span", { class: "trouble-words" }, words || "(no reason was given)");
    return h("li", {}, h("b", {}, `${whole(count)} ×`), chip(status ? `${outcome} ${status}` : outcome), said, h("span", { class: "trouble-at" }, `first at ${clock(first)}`));
  };
  root.append(h("ul", { class: "troubles" }, data.troubles.map(line)));
}

function costs(root, { costs: all, price_per_gpu_hour: price }) {
  const rows = all.map((each) => ({ name: each.model, dollars: each.dollars, parts: [each.ready, each.starting, each.draining], total: each.ready + each.starting + each.draining }));
  if (!rows.some(({ total }) => total)) return root.append(notice(rows.length ? "No replica ever had a GPU." : "The server did not report the states of its replicas."));
  const priced = rows.some((row) => known(row.dollars));
  const line = (row) => tableRow(shortened(row.name, 40), [...[...row.parts, row.total].map(whole), ...(priced ? [dollars(row.dollars)] : [])]);
  root.append(
    ...costBars([["serving", "ready"], ["warming", "starting"], ["draining", "draining"]], rows),
    table("GPU-seconds by model and state", ["model", "ready", "starting", "draining", "GPU-seconds", ...(priced ? ["US$"] : [])], rows.map(line)),
    help(`${priced ? `At ${dollars(price)} a GPU-hour. ` : ""}A replica that is pending has no GPU yet.`),
  );
}
