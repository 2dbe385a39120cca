// Tables: the policies, the latencies, and what the replay was run with.

function comparison(data) {
  const main = data.rows.find((row) => row.main);
  const headings = ["policy", "GPU-seconds", "to the oracle", `${shortened(main.policy, 20)} to it`, "attained", "TTFT in time", "starts", "changes", "peak", "US$"];
  const rows = data.rows.map((row) =>
    h(
      "tr",
      { class: row.main ? "main" : null },
      h("th", { scope: "row" }, shortened(row.policy, 48), row.on_front ? h("span", { class: "chip", title: "No other policy is both cheaper and at least as good" }, "front") : null),
      cell(whole(row.gpu_seconds)),
      cell(times(row.oracle_ratio)),
      cell(row.main ? "" : times(row.ratio)),
      cell(`${percent(row.attainment)} ${row.attainment >= data.goal ? "✓" : "✗"}`, `number ${row.attainment >= data.goal ? "good" : "bad"}`),
      cell(percent(row.ttft_ok)),
      ...[row.starts, row.changes, row.peak].map((value) => cell(whole(value))),
      cell(dollars(row.dollars)),
    ),
  );
  return table("Policies, cheapest first", headings, rows);
}

function latency(root, result) {
  const { targets } = result;
  const named = ["p50_s", "p90_s", "p95_s", "p99_s"];
  const rows = [
    ["TTFT, all", result.ttft.all, targets.ttft_s],
    ["TTFT, warm", result.ttft.warm, targets.ttft_s],
    ["TTFT, woken from zero", result.ttft.cold, targets.ttft_s],
    ["inter-token latency", result.itl, targets.itl_s],
    ["end to end", result.e2e, null],
  ].map(([name, values, target]) => {
    const shown = (key) => {
      const value = values.count > 0 ? values[key] : null;
      const beyond = target !== null && known(value) && value > target;
      return cell(beyond ? `▲ ${seconds(value)}` : seconds(value), `number${beyond ? " bad" : ""}`);
    };
    return h("tr", {}, h("th", { scope: "row" }, name), cell(compact(values.count)), shown("mean_s"), ...named.map(shown));
  });
  root.append(
    table("Latencies", ["", "count", "mean", "P50", "P90", "P95", "P99"], rows),
    h("p", { class: "help" }, `▲ is above its target: TTFT ${seconds(targets.ttft_s)}, ITL ${seconds(targets.itl_s)}. Attained without the cold waits: ${percent(result.attainment_warm)} of requests, ${percent(result.ttft_ok_warm)} of TTFTs.`),
  );
}

function run(root, result) {
  const entry = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  const text = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));
  const entries = [
    ["trace", result.trace],
    ["profile", result.profile],
    ["seed", result.seed],
    ["replayed in", seconds(result.wall_s)],
    ["rejected", whole(result.rejected)],
    ["preemptions", whole(result.preemptions)],
    ...Object.entries(result.versions),
  ];
  const knobs = Object.entries(result.knobs);
  root.append(h("dl", { class: "entries" }, ...entries.map(([name, value]) => entry(name, text(value)))));
  if (knobs.length) root.append(h("h3", {}, "Knobs"), h("dl", { class: "entries" }, ...knobs.map(([name, value]) => entry(name, text(value)))));
}
