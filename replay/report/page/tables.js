// The headline figures, and tables: the policies, the latencies, the costs, and the settings of the replay.

function headline(root, data) {
  const result = data.results[data.main];
  const { attainment, infeasible, requests, gpu_seconds: spent } = result;
  const met = attainment >= data.goal;
  const peer = data.rows.find((row) => row.policy === data.cheapest);
  const change = known(peer?.ratio) ? Math.round(100 * (peer.ratio - 1)) : null;
  const goal = `${met ? "✓ reaches" : "✗ below"} the goal of ${percent(data.goal).replace(".0", "")}`;
  const judged = requests ? [goal, met ? "good" : "bad"] : ["no requests", ""];
  const never = infeasible > 0 ? `${percent(infeasible)} cannot meet it on any replica` : "of all requests";
  const price = result.price_per_gpu_hour ? `, ${dollars(result.dollars)}` : "";
  const failed = result.failed_starts ? `, ${whole(result.failed_starts)} of them failed` : "";
  const by = `${change < 0 ? "−" : "+"}${Math.abs(change)}\u00a0%`;
  const whom = peer ? `GPU-seconds; ${shortened(peer.policy, 28)} at ${percent(peer.attainment)}` : "";
  figures(root, [
    ["SLO attainment", percent(attainment), ...judged],
    [`TTFT within ${seconds(result.targets.ttft_s)}`, percent(result.ttft_ok), never],
    ["GPU-seconds", compact(spent), `${digits(spent / 3600)} GPU-hours${price}`],
    known(result.oracle_ratio) && ["Ratio to the oracle", times(result.oracle_ratio), "GPU-seconds of a clairvoyant schedule"],
    change !== null && ["Versus cheapest peer", by, whom, change < 0 ? "good" : ""],
    ["Fleet", `${whole(result.peak)} peak`, `${whole(result.changes)} changes, ${whole(result.starts)} starts${failed}`],
  ]);
}

function comparison({ rows, goal }) {
  const ours = `${shortened(rows.find((row) => row.main).policy, 20)} / it`;
  const columns = [
    ["GPU-seconds", (row) => whole(row.gpu_seconds)],
    ["ratio to oracle", (row) => times(row.oracle_ratio)],
    [ours, (row) => (row.main ? "" : times(row.ratio))],
    ["attained", ({ attainment: share }) => (share >= goal ? [`${percent(share)} ✓`, "good"] : [`${percent(share)} ✗`, "bad"])],
    ["TTFT in time", (row) => percent(row.ttft_ok)],
    ...["starts", "changes", "peak"].map((name) => [name, (row) => whole(row[name])]),
    ["US$", (row) => dollars(row.dollars)],
  ];
  const line = (row) => {
    const front = row.on_front && chip("front", "No other policy is both cheaper and at least as good");
    const cells = columns.map(([, cell]) => cell(row));
    return tableRow(h("span", shortened(row.policy, 48), front), cells, row.main ? "main" : null);
  };
  return table("Policies, cheapest first", ["policy", ...columns.map(([name]) => name)], rows.map(line));
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
    ["TTFT, queued for a cold start", ttft.cold, targets.ttft_s],
    ["inter-token latency", itl, targets.itl_s],
    ["end to end", e2e, null],
  ];
  const above = `▲ marks a latency above its target: TTFT ${seconds(targets.ttft_s)}, ITL ${seconds(targets.itl_s)}.`;
  const held = `Without requests queued for a cold start, ${percent(warm)} of requests attained the SLO and ${percent(warmInTime)} of TTFTs were in time.`;
  root.append(table("Latencies", ["", "count", "mean", "P50", "P90", "P95", "P99"], rows.map(line)), help(`${above} ${held}`));
  lanes(root, data.results[data.main]);
}

// The lanes, if there are several, and the background work.
function lanes(root, { lanes: byLane, background: work }) {
  if (byLane) {
    const share = (value) => (known(value) ? percent(value) : "–");
    const line = ([name, { requests, attainment, ttft_ok: inTime, ttft }]) =>
      tableRow(name, [whole(requests), share(attainment), share(inTime), ...["p50_s", "p95_s", "p99_s"].map((key) => (ttft.count > 0 ? seconds(ttft[key]) : "–"))]);
    root.append(table("TTFT by lane", ["", "requests", "attained", "in time", "P50", "P95", "P99"], Object.entries(byLane).map(line)));
  }
  if (!work) return;
  const end = work.finished ? `the last after ${seconds(work.finished_at_s)}` : "none yet";
  const late = work.late ? ` ▲ ${whole(work.late)} were unfinished at their deadline.` : "";
  root.append(help(`Background: ${whole(work.finished)} of ${whole(work.requests)} requests (${compact(work.tokens)} tokens) finished, ${end}.${late}`));
}

function costs(root, { results, main: shown }) {
  const states = [["serving", "serving"], ["idle", "ready, idle"], ["warming", "starting"], ["draining", "draining"]];
  const row = (result) => ({ name: result.policy, total: result.gpu_seconds, parts: states.map(([name]) => result.gpu_seconds_by_state[name]) });
  const main = row(results[shown]);
  if (!main.total) return root.append(notice("No replica was ever asked for."));
  const line = ([, label], index) => tableRow(label, [whole(main.parts[index]), percent(main.parts[index] / main.total)]);
  root.append(
    ...costBars(states, [main, ...results.filter((_, index) => index !== shown).map(row)]),
    table("GPU-seconds by state", ["state", "GPU-seconds", "share"], states.map(line)),
  );
}

function run(root, data) {
  const { trace, profile, seed, wall_s: wall, rejected, preemptions, versions, knobs } = data.results[data.main];
  const text = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));
  const told = (values) => entries(Object.entries(values).map(([name, value]) => [name, text(value)]));
  const counts = { rejected: whole(rejected), preemptions: whole(preemptions) };
  root.append(told({ trace, profile, seed, "replayed in": seconds(wall), ...counts, ...versions }));
  if (Object.keys(knobs).length) root.append(h("h3", "Knobs"), told(knobs));
}
