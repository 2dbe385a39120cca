// Decisions as marks above the replicas: a triangle up or down, a diamond where nothing moved.

const MARKER_LANE = 20;
const MARKS_APART = 5; // pixels between two marks, below which the later one is left out

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
          onclick: (event) => on.pin(event, index),
        },
        s("rect", { class: "reach", x: -7, y: -9, width: 14, height: 18 }),
        s("path", { d: SHAPES[moved(record)] }),
      ),
    );
  });
}
