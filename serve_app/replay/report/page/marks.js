// Decisions as marks above the replicas: a triangle up or down, a diamond where nothing moved.

const MARKER_LANE = 20;
const MARKS_APART = 5; // pixels between two marks, below which the later one is left out

function moved(record) {
  if (record.kind === "error") return "error";
  const to = record.mode === "advise" ? record.wanted : record.new_target;
  return to > record.old_target ? "up" : to < record.old_target ? "down" : "same";
}

function change(record) {
  return record.mode === "advise"
    ? `${record.old_target} (${record.wanted})`
    : `${record.old_target} → ${record.new_target}`;
}

const SHAPES = {
  up: "M0-6L5.500 4H-5.500Z",
  down: "M0 6L5.500-4H-5.500Z",
  same: "M0-5L5 0L0 5L-5 0Z",
  error: "M-4-4L4 4M4-4L-4 4",
};

// Adds the marks of the decisions in view. Only one of them is a tab stop; arrow keys lead to the others.
function drawMarks(svg, view, height, current, on) {
  const { decisions } = view.result;
  let previous = -Infinity;
  decisions.forEach((record, index) => {
    if (record.at < view.from || record.at > view.to) return;
    const x = view.x(record.at);
    const chosen = index === current;
    if (chosen) svg.append(s("path", { class: "chosen-at", d: `M${pixel(x)} ${MARKER_LANE - 4}V${height}` }));
    if (!chosen && x - previous < MARKS_APART) return;
    previous = x;
    svg.append(
      s(
        "g",
        {
          class: `mark ${moved(record)}${chosen ? " chosen" : ""}`,
          transform: `translate(${pixel(x)} 9)`,
          role: "button",
          tabindex: chosen ? 0 : -1,
          "data-index": index,
          "aria-label": `${clock(record.at, true)}, ${change(record)} replicas: ${record.reason}`,
          onpointerenter: () => on.show(index),
          onpointerleave: () => on.hide(),
          onfocus: () => on.show(index),
          onblur: () => on.hide(),
          onclick: (event) => on.pin(index, event),
        },
        s("rect", { class: "reach", x: -7, y: -9, width: 14, height: 18 }),
        s("path", { d: SHAPES[moved(record)] }),
      ),
    );
  });
}
