// The figures one asks for first.

function headline(root, data, result) {
  const goal = percent(data.goal).replace(".0", "");
  const met = result.attainment >= data.goal;
  const peer = data.rows.find((row) => row.policy === data.cheapest);
  const at = `P${result.targets.percentile}`;
  const figures = [
    figure(
      "SLO attainment",
      percent(result.attainment),
      result.requests ? `${met ? "✓ reaches" : "✗ below"} the goal of ${goal}` : "no requests",
      result.requests ? (met ? "good" : "bad") : "",
    ),
    figure(
      `TTFT within ${seconds(result.targets.ttft_s)}`,
      percent(result.ttft_ok),
      result.infeasible > 0 ? `${percent(result.infeasible)} cannot be, on any replica` : "of all requests",
    ),
    figure(
      "GPU-seconds",
      compact(result.gpu_seconds),
      `${digits(result.gpu_seconds / 3600)} GPU-hours${result.price_per_gpu_hour ? `, ${dollars(result.dollars)}` : ""}`,
    ),
  ];
  if (known(result.oracle_ratio)) {
    figures.push(figure("To the oracle", times(result.oracle_ratio), "GPU-seconds of a clairvoyant schedule"));
  }
  if (peer && known(peer.ratio)) {
    const change = Math.round(100 * (peer.ratio - 1));
    const sign = change < 0 ? "−" : "+";
    figures.push(
      figure(
        "To the cheapest peer",
        `${sign}${Math.abs(change)}\u00a0%`,
        `GPU-seconds; ${shortened(peer.policy, 28)} at ${percent(peer.attainment)}`,
        change < 0 ? "good" : "",
      ),
    );
  }
  const failed = result.failed_starts ? `, ${whole(result.failed_starts)} of them failed` : "";
  figures.push(
    figure("Fleet", `${whole(result.peak)} peak`, `${whole(result.changes)} changes, ${whole(result.starts)} starts${failed}`),
  );
  root.append(h("dl", {}, ...figures));
  document
    .getElementById("facts")
    .append(
      `${whole(result.requests)} requests in ${seconds(result.duration_s)} · ${result.profile} · ` +
        `${at} of TTFT ≤ ${seconds(result.targets.ttft_s)} and of ITL ≤ ${seconds(result.targets.itl_s)} in every minute`,
    );
}
