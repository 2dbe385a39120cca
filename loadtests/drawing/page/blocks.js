// Figures to be read at a glance, and tables.

function figure(label, value, note, tone = "") {
  return h("div", { class: `figure ${tone}` }, h("dt", {}, label), h("dd", {}, h("b", {}, value), h("span", {}, note)));
}

const cell = (text, kind = "number") => h("td", { class: kind }, text);

function table(caption, headings, rows) {
  return h(
    "div",
    { class: "scrolling", tabindex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      { class: "figures" },
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, ...headings.map((name, index) => h("th", { scope: "col", class: index ? "number" : null }, name)))),
      h("tbody", {}, ...rows),
    ),
  );
}
