// The figures one asks for first, and tables: the policies, the latencies, the costs, and what the replay was run with.

function headline(root, data) {
  const result = data.results[data.main];
  const met = result.attainment >= data.goal;
  const peer = data.rows.find((row) => row.policy === data.cheapest);
  const change = known(peer?.ratio) ? Math.round(100 * (peer.ratio - 1)) : null;
  const goal = `${met ? "✓ reaches" : "✗ below"} the goal of ${percent(data.goal).replace(".0", "")}`;
  const infeasible = `${percent(result.infeasible)} cannot meet it on any replica`;
  const price = result.price_per_gpu_hour ? `, ${dollars(result.dollars)}` : "";
  const failed = result.failed_starts ? `, ${whole(result.failed_starts)} of them failed` : "";
  figures(root, [
    ["SLO attainment", percent(result.attainment), result.requests ? goal : "no requests", result.requests ? (met ? "good" : "bad") : ""],
    [`TTFT within ${seconds(result.targets.ttft_s)}`, percent(result.ttft_ok), result.infeasible > 0 ? infeasible : "of all requests"],
    ["GPU-seconds", compact(result.gpu_seconds), `${digits(result.gpu_seconds / 3600)} GPU-hours${price}`],
    known(result.oracle_ratio) && ["Ratio to the oracle", times(result.oracle_ratio), "GPU-seconds of a clairvoyant schedule"],
    change !== null && ["Versus cheapest peer", `${change < 0 ? "−" : "+"}${Math.abs(change)}\u00a0%`, `GPU-seconds; ${shortened(peer.policy, 28)} at ${percent(peer.attainment)}`, change < 0 ? "good" : ""],
    ["Fleet", `${whole(result.peak)} peak`, `${whole(result.changes)} changes, ${whole(result.starts)} starts${failed}`],
  ]);
}

function comparison(data) {
  const main = data.rows.find((row) => row.main);
  const headings = ["policy", "GPU-seconds", "ratio to oracle", `${shortened(main.policy, 20)} / it`, "attained", "TTFT in time", "starts", "changes", "peak", "US$"];
  const line = (row) => {
    const met = row.attainment >= data.goal;
    const front = row.on_front ? chip("front", "No other policy is both cheaper and at least as good") : "";
    const attained = [`${percent(row.attainment)} ${met ? "✓" : "✗"}`, met ? "good" : "bad"];
    const cells = [whole(row.gpu_seconds), times(row.oracle_ratio), row.main ? "" : times(row.ratio), attained, percent(row.ttft_ok), whole(row.starts), whole(row.changes), whole(row.peak), dollars(row.dollars)];
    return tableRow(h("span", {}, shortened(row.policy, 48), front), cells, row.main ? "main" : null);
  };
  return table("Policies, cheapest first", headings, data.rows.map(line));
}

function latency(root, data) {
  const { targets, ttft, itl, e2e, attainment_warm: warm, ttft_ok_warm: warmInTime } = data.results[data.main];
  const line = ([name, values, target]) => {
    const cells = ["mean_s", "p50_s", "p90_s", "p95_s", "p99_s"].map((key) => {
      const value = values.count > 0 ? values[key] : null;
      return target && value > target ? [`▲ ${seconds(value)}`, "bad"] : seconds(value);
    });
    return tableRow(name, [compact(values.count), ...cells]);
  };
  const rows = [
    ["TTFT, all", ttft.all, targets.ttft_s],
    ["TTFT, warm", ttft.warm, targets.ttft_s],
    ["TTFT, held for a cold start", ttft.cold, targets.ttft_s],
    ["inter-token latency", itl, targets.itl_s],
    ["end to end", e2e, null],
  ];
  root.append(
    table("Latencies", ["", "count", "mean", "P50", "P90", "P95", "P99"], rows.map(line)),
    help(`▲ marks a latency above its target: TTFT ${seconds(targets.ttft_s)}, ITL ${seconds(targets.itl_s)}. Without requests held for a cold start, ${percent(warm)} of requests attained the SLO and ${percent(warmInTime)} of TTFTs were in time.`),
  );
}

function costs(root, data) {
  const states = [["serving", "serving"], ["idle", "ready, idle"], ["warming", "starting"], ["draining", "draining"]];
  const row = (result) => ({ name: result.policy, total: result.gpu_seconds, parts: states.map(([name]) => result.gpu_seconds_by_state[name]) });
  const main = row(data.results[data.main]);
  if (!main.total) return root.append(notice("No replica was ever asked for."));
  root.append(
    ...costBars(states, [main, ...data.results.filter((_, index) => index !== data.main).map(row)]),
    table("GPU-seconds by state", ["state", "GPU-seconds", "share"], states.map(([, label], index) => tableRow(label, [whole(main.parts[index]), percent(main.parts[index] / main.total)]))),
  );
}

function run(root, data) {
  const result = data.results[data.main];
  const text = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));
  const told = (values) => entries(Object.entries(values).map(([name, value]) => [name, text(value)]));
  const { trace, profile, seed, wall_s: wall, rejected, preemptions, versions, knobs } = result;
  root.append(told({ trace, profile, seed, "replayed in": seconds(wall), rejected: whole(rejected), preemptions: whole(preemptions), ...versions }));
  if (Object.keys(knobs).length) root.append(h("h3", {}, "Knobs"), told(knobs));
}
