// GPU-seconds by what the replicas were doing: one bar a row, all to one scale. A state is [kind, label]; a row is
// { name, total, parts }, its parts in the order of the states.

function costBars(states, rows) {
  const wide = 1000;
  const most = Math.max(...rows.map((row) => row.total));
  const bar = ({ name, total, parts }) => {
    let left = 0;
    const shares = parts.map((value) => percent(total ? value / total : 0));
    const drawn = parts.map((value, index) => {
      const [kind, label] = states[index];
      const long = (wide * value) / most;
      const title = s("title", {}, `${label}: ${whole(value)} GPU-seconds, ${shares[index]}`);
      left += long;
      return s("rect", { class: `part ${kind}`, x: pixel(left - long), width: Math.max(0, pixel(long - 2)), height: 22 }, title);
    });
    const label = `${name}: ${states.map(([, state], index) => `${state} ${shares[index]}`).join(", ")}`;
    const head = h("span", {}, h("b", {}, shortened(name, 40)), h("span", {}, whole(total)));
    return h("div", { class: "cost" }, head, s("svg", { viewBox: `0 0 ${wide} 22`, preserveAspectRatio: "none", height: 22, role: "img", "aria-label": label }, drawn));
  };
  return [h("p", { class: "keys" }, states.map(([kind, label]) => key(`fill ${kind}`, label))), h("div", { class: "bars" }, rows.map(bar))];
}
