// Decisions as numbered marks above the replicas they are of; marks that would meet become one.

const MARKER_LANE = 24;
const MARK_GAP = 3; // pixels between two marks
const BEATS_APART = 6; // pixels between two marks of decisions that changed nothing

function markWidth(group) {
  return 18 + 6.8 * markWords(group).length;
}

function markWords(group) {
  const [first, last] = [group.members[0].record.number, group.members.at(-1).record.number];
  return first === last ? `${first}` : `${first}–${last}`;
}

// Groups of decisions so that no two marks meet: a mark that would touch the one before it joins it.
function grouped(members, view) {
  const groups = [];
  for (const member of members) {
    let group = { members: [member] };
    for (;;) {
      const [left, right] = [group.members[0].x, group.members.at(-1).x];
      const width = markWidth(group);
      group.width = width;
      group.x = Math.min(Math.max((left + right) / 2, GUTTER + width / 2 - 8), view.width + MARGIN - width / 2);
      const before = groups.at(-1);
      if (!before || before.x + before.width / 2 + MARK_GAP <= group.x - width / 2) break;
      groups.pop();
      group = { members: [...before.members, ...group.members] };
    }
    groups.push(group);
  }
  return groups;
}

function drawMarks(svg, view, height, current, on, panel) {
  const members = [];
  let beat = -Infinity;
  view.result.decisions.forEach((record, index) => {
    if (record.at < view.from || record.at > view.to) return;
    if (record.model !== panel.model && view.result.models.some((model) => model.model === record.model)) return;
    const x = view.x(record.at);
    if (index === current) svg.append(s("path", { class: "chosen-at", d: `M${pixel(x)} ${MARKER_LANE - 6}V${height}` }));
    if (record.number) {
      members.push({ record, index, x });
      svg.append(s("path", { class: "decided-at", d: `M${pixel(x)} ${MARKER_LANE - 4}V${height}` }));
    } else if (x - beat >= BEATS_APART || index === current) {
      beat = x;
      svg.append(s("path", { class: `beat${index === current ? " chosen" : ""}`, d: `M${pixel(x)} ${MARKER_LANE - 5}v6` }, s("title", {}, `${clock(record.at)}: ${record.reason}`)));
    }
  });
  for (const group of grouped(members, view)) svg.append(mark(group, current, on));
}

function mark(group, current, on) {
  const indices = group.members.map(({ index }) => index);
  const chosen = indices.includes(current);
  const { record } = group.members.at(-1);
  const spoken = group.members.map(({ record: each }) => `${clock(each.at)}, ${change(each)} replicas: ${each.reason}`).join("; ");
  const shown = () => on.show(...(chosen ? [current] : indices));
  return s(
    "g",
    {
      class: `mark ${moved(record)}${chosen ? " chosen" : ""}`,
      transform: `translate(${pixel(group.x)} 9)`,
      role: "button",
      tabindex: chosen || (current === null && indices[0] === 0) ? 0 : -1,
      "data-index": chosen ? current : indices[0],
      "aria-label": spoken,
      onpointerenter: () => on.show(...indices),
      onpointerleave: () => on.hide(),
      onfocus: shown,
      onblur: () => on.hide(),
      onclick: (event) => on.pin(event, ...indices),
    },
    s("rect", { class: "reach", x: -group.width / 2, y: -8.5, width: group.width, height: 17, rx: 8.5 }),
    s("path", { d: SHAPES[moved(record)], transform: `translate(${pixel(-group.width / 2 + 8)} 0) scale(.72)` }),
    svgText(-group.width / 2 + 14, 4, markWords(group), { class: "mark-name" }),
  );
}
