// What floats over the timeline at the pointer: the values there.

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
