// GPU-seconds by what the replicas were doing: one bar a policy, all to one scale.

const STATES = [
  ["serving", "serving"],
  ["idle", "ready, idle"],
  ["warming", "starting"],
  ["draining", "draining"],
];

function costs(root, data) {
  const main = data.results[data.main];
  const most = Math.max(...data.results.map((result) => result.gpu_seconds), 1e-9);
  if (!main.gpu_seconds) {
    root.append(h("p", { class: "notice" }, "No replica was ever asked for."));
    return;
  }
  root.append(
    h("p", { class: "keys" }, ...STATES.map(([name, label]) => h("span", { class: "key" }, swatch(`fill ${name}`), label))),
    h("div", { class: "bars" }, ...[main, ...data.results.filter((result) => result !== main)].map((result) => costBar(result, most))),
    h(
      "table",
      { class: "figures" },
      h("thead", {}, h("tr", {}, ...["state", "GPU-seconds", "share"].map((name, index) => h("th", { class: index ? "number" : null }, name)))),
      h(
        "tbody",
        {},
        ...STATES.map(([name, label]) => {
          const value = main.gpu_seconds_by_state[name];
          return h("tr", {}, h("td", {}, label), h("td", { class: "number" }, whole(value)), h("td", { class: "number" }, percent(value / main.gpu_seconds)));
        }),
      ),
    ),
  );
}

function costBar(result, most) {
  const width = 1000;
  const height = 22;
  let left = 0;
  const parts = STATES.map(([name, label]) => {
    const value = result.gpu_seconds_by_state[name];
    const long = (width * value) / most;
    const share = percent(value / Math.max(result.gpu_seconds, 1e-9));
    const part = s("rect", { class: `part ${name}`, x: left, width: Math.max(0, long - 2), height }, s("title", {}, `${label}: ${whole(value)} GPU-seconds, ${share}`));
    left += long;
    return part;
  });
  const shares = STATES.map(([name, label]) => `${label} ${percent(result.gpu_seconds_by_state[name] / Math.max(result.gpu_seconds, 1e-9))}`);
  return h(
    "div",
    { class: "cost" },
    h("span", {}, h("b", {}, shortened(result.policy, 32)), h("span", {}, whole(result.gpu_seconds))),
    s("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", height, role: "img", "aria-label": `${result.policy}: ${shares.join(", ")}` }, ...parts),
  );
}
