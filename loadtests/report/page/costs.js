// GPU-seconds by what the replicas were doing, a bar a model, and how the client kept time.

const STATES = [
  ["ready", "serving", "ready"],
  ["starting", "warming", "starting"],
  ["draining", "draining", "draining"],
];

function costs(root, data) {
  const rows = data.costs.map((each) => ({ ...each, total: each.ready + each.starting + each.draining }));
  const most = Math.max(...rows.map((each) => each.total), 0);
  if (!most) {
    root.append(h("p", { class: "notice" }, rows.length ? "No replica ever had a GPU." : "The server did not tell what its replicas did."));
    return;
  }
  const priced = rows.some((each) => known(each.dollars));
  const headings = ["model", ...STATES.map(([, , name]) => name), "GPU-seconds", ...(priced ? ["US$"] : [])];
  root.append(
    h("p", { class: "keys" }, ...STATES.map(([, kind, name]) => h("span", { class: "key" }, swatch(`fill ${kind}`), name))),
    h("div", { class: "bars" }, ...rows.map((each) => costBar(each, most))),
    table(
      "GPU-seconds by model and state",
      headings,
      rows.map((each) => h("tr", {}, h("th", { scope: "row" }, shortened(each.model, 40)), ...[each.ready, each.starting, each.draining, each.total].map((value) => cell(whole(value))), priced ? cell(dollars(each.dollars)) : null)),
    ),
    h("p", { class: "help" }, priced ? `At ${dollars(data.price_per_gpu_hour)} a GPU-hour. ` : "", "A replica that is pending has no GPU yet."),
  );
}

function costBar(each, most) {
  const wide = 1000;
  let left = 0;
  const parts = STATES.map(([state, kind, name]) => {
    const long = (wide * each[state]) / most;
    const part = s("rect", { class: `part ${kind}`, x: pixel(left), width: Math.max(0, pixel(long - 2)), height: 22 }, s("title", {}, `${name}: ${whole(each[state])} GPU-seconds, ${percent(each[state] / each.total)}`));
    left += long;
    return part;
  });
  const shares = STATES.map(([state, , name]) => `${name} ${percent(each.total ? each[state] / each.total : 0)}`).join(", ");
  return h(
    "div",
    { class: "cost" },
    h("span", {}, h("b", {}, shortened(each.model, 40)), h("span", {}, whole(each.total))),
    s("svg", { viewBox: `0 0 ${wide} 22`, preserveAspectRatio: "none", height: 22, role: "img", "aria-label": shares }, ...parts),
  );
}

function client(root, data) {
  const { rows, cpu_share: share, processes } = data.client;
  checks(root, rows.map((each) => ({ ...each, words: each.name })), "");
  const used = known(share) ? `The busiest of ${whole(processes)} client ${processes === 1 ? "process" : "processes"} used ${percent(share)} of a core. ` : "";
  root.append(h("p", { class: "help" }, used, "A run whose client was later than this is invalid: its own lag would be counted as the server's."));
}
