// What floats over a drawing.

function row(kind, name, value, tone = "") {
  return h("tr", { class: tone }, h("td", {}, swatch(kind), name), h("td", {}, value));
}

// Puts a floating element beside `x`, on the side that has room for it.
function place(card, width, x, top) {
  const own = card.offsetWidth;
  const right = x + 14;
  const left = right + own <= width ? right : Math.max(0, Math.min(x - 14 - own, width - own));
  card.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}
