// Tables: latencies, outcomes, errors, and costs.

function latencies(root, data) {
  const line = ({ name, count, never, ...each }) => {
    const values = ["mean", "p50", "p90", "p95", "p99", "max"].map((key) => latencyWords(each[key]));
    return tableRow(name, [whole(count), never ? whole(never) : NOTHING, ...values]);
  };
  const headings = ["", "count", "never", "mean", "P50", "P90", "P95", "P99", "max"];
  const words = "Latencies count from the intended time and include errors: a missing answer counts as longer than all others.";
  root.append(
    table("Latencies", headings, data.latencies.map(line)),
    help(`${words} ITL is the time between two pieces of one answer. ${data.left_waiting}`),
  );
}

function outcomes(root, { counts }) {
  const names = ["requests", "answered", "left", "rejected", "failed", "broken", "abandoned", "retried", "cold"];
  const cell = (value, name) => (value ? [whole(value), ERROR_OUTCOMES.includes(name) ? "bad" : ""] : NOTHING);
  const line = ([name, found], kind) => tableRow(shortened(name, 40), names.map((each) => cell(found[each], each)), kind);
  const group = (words, all) => {
    const head = h("tr.group", h("th", { scope: "rowgroup", colspan: names.length + 1 }, words));
    return Object.keys(all).length > 1 ? [head, ...Object.entries(all).map((each) => line(each))] : [];
  };
  const { all, kinds, models } = counts;
  const lines = [line(["all", all], "main"), ...group("by kind", kinds), ...group("by model", models)];
  root.append(
    table("Outcomes of the requests", ["", ...names.slice(0, -1), "cold"], lines),
    help("Each request has one outcome; retried and cold requests are counted there as well."),
  );
}

function troubles(root, data) {
  root.hidden = !data.troubles.length;
  const line = ({ count, status, outcome, words, first_s: first }) => {
    const said = h("span.trouble-words", words || "(no reason was given)");
    return h("li", h("b", `${whole(count)} ×`), chip(status ? `${outcome} ${status}` : outcome), said, h("span.trouble-at", `first at ${clock(first)}`));
  };
  root.append(h("ul.troubles", data.troubles.map(line)));
}

function costs(root, { costs: all, price_per_gpu_hour: price }) {
  const states = [["serving", "ready"], ["warming", "starting"], ["draining", "draining"]];
  const rows = all.map(({ model: name, dollars, ready, starting, draining }) => ({ name, dollars, parts: [ready, starting, draining], total: ready + starting + draining }));
  const none = rows.length ? "No replica ever had a GPU." : "The server did not report the states of its replicas.";
  if (!rows.some(({ total }) => total)) return root.append(notice(none));
  const priced = rows.some((row) => known(row.dollars));
  const line = (row) => tableRow(shortened(row.name, 40), [...row.parts, row.total].map(whole).concat(priced ? dollars(row.dollars) : []));
  const headings = ["model", ...states.map(([, label]) => label), "GPU-seconds"].concat(priced ? "US$" : []);
  root.append(
    ...costBars(states, rows), table("GPU-seconds by model and state", headings, rows.map(line)),
    help(`${priced ? `At ${dollars(price)} a GPU-hour. ` : ""}A replica that is pending has no GPU yet.`),
  );
}
