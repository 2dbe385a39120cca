// The verdict, the figures one asks for first, and every demand beside its bound.

const STAMPS = {
  pass: ["PASS", "M4 12.500L9.500 18L20 6.500", "M12 1a11 11 0 1 0 .001 0Z"],
  fail: ["FAIL", "M7.500 7.500L16.500 16.500M16.500 7.500L7.500 16.500", "M7.500 1H16.500L23 7.500V16.500L16.500 23H7.500L1 16.500V7.500Z"],
  invalid: ["INVALID", "M12 8.500V15M12 18.300V18.500", "M12 1.500L23.500 22H.500Z"],
};
const STAMP_WORDS = {
  pass: "every bound that was judged was kept",
  fail: "a bound was missed",
  invalid: "its figures mean nothing",
};

function stamp(root, verdict) {
  const [word, sign, shape] = STAMPS[verdict.overall];
  const symbol = s("svg", { viewBox: "0 0 24 24", width: 30, height: 30, "aria-hidden": "true" }, s("path", { class: "stamp-shape", d: shape }), s("path", { class: "stamp-sign", d: sign }));
  const said = verdict.overall === "invalid" ? STAMP_WORDS.invalid : verdict.judged ? `${whole(verdict.judged - verdict.missed)} of ${whole(verdict.judged)} bounds kept` : "no bound was judged";
  root.className = `stamp ${verdict.overall}`;
  root.append(symbol, h("b", {}, word), h("span", {}, said));
}

function headline(root, data) {
  const { figures, latencies } = data;
  const of = (name) => latencies.find((each) => each.name === name);
  const [ttft, itl, held] = [of("TTFT"), of("ITL"), of("cold wait")];
  const tone = (name, value) => {
    const bound = data.bounds[name].p99;
    if (!known(bound) || value === undefined) return "";
    return !isNever(value) && value < bound ? "good" : "bad";
  };
  const limit = (name) => (known(data.bounds[name].p99) ? `, bound ${seconds(data.bounds[name].p99)}` : "");
  const median = (found) => (found?.count ? `P50 ${latencyWords(found.p50)}` : "none measured");
  const cards = [
    figure("TTFT P99", ttft?.count ? latencyWords(ttft.p99) : NOTHING, `${median(ttft)}${limit("ttft")}`, tone("ttft", ttft?.p99)),
    figure("ITL P99", itl?.count ? latencyWords(itl.p99) : NOTHING, `${median(itl)}${limit("itl")}`, tone("itl", itl?.p99)),
    figure("Errors", whole(figures.errors), `${percent(figures.error_rate)} of ${whole(figures.requests)} requests${known(figures.error_bound) ? `, bound ${digits(100 * figures.error_bound)}\u00a0%` : ""}`, known(figures.error_bound) ? (figures.error_rate < figures.error_bound ? "good" : "bad") : ""),
  ];
  if (figures.cold) cards.push(figure("Held for a replica", whole(figures.cold), `${median(held)}, longest ${latencyWords(held.max)}`));
  if (figures.peaks.length) {
    cards.push(figure("Peak replicas", figures.peaks.map(whole).join(" + "), readyWords(figures)));
  }
  const perSecond = (value) => digits(value ?? 0);
  if (known(figures.goodput)) cards.push(figure("Goodput", percent(figures.goodput), `${perSecond(figures.goodput_rps)} good requests/s, ${perSecond(figures.offered_rps)} offered`));
  cards.push(figure("Throughput", `${compact(Math.round(figures.output_tokens_per_s ?? 0))}`, `tokens/s; ${perSecond(figures.answered_rps)} requests/s answered`));
  if (known(figures.gpu_seconds)) cards.push(figure("GPU-seconds", compact(figures.gpu_seconds), known(figures.dollars) ? `${dollars(figures.dollars)} at ${dollars(data.price_per_gpu_hour)} an hour` : "no price is known"));
  root.append(h("dl", {}, ...cards));
}

function readyWords({ peaks, held_to_ready_s: waits }) {
  if (!Math.max(...peaks)) return "none ever came";
  const waited = waits.filter(known);
  return waited.length ? `first ready ${seconds(Math.max(...waited))} after the first hold` : "none had to be waited for";
}

function reasons(root, verdict) {
  root.hidden = !verdict.invalid.length;
  if (root.hidden) return;
  for (const name of ["headline", "checks"]) document.getElementById(name).classList.add("void");
  root.append(h("h2", {}, "Why the figures mean nothing"), h("ul", {}, ...verdict.invalid.map((reason) => h("li", {}, reason))));
}

// A bar of a value against its bound, which is a line at half of the width; what is beyond twice the bound is cut.
function against(check) {
  if (check.over === null || check.over === undefined || check.exact) return h("span", { class: "against none" });
  const over = isNever(check.over) ? Infinity : check.over;
  const kind = check.ok ? "kept" : "missed-bound";
  return h(
    "span",
    { class: `against ${kind}${over > 2 ? " cut" : ""}`, title: `${isNever(check.over) ? "never" : `${digits(over)} times its bound`}` },
    h("i", { style: `width:${(Math.min(over, 2) * 50).toFixed(1)}%` }),
    h("b", {}),
  );
}

function judged(check) {
  const [word, kind] = check.ok === null ? ["not judged", "unjudged"] : check.ok ? ["✓ kept", "good"] : ["✗ missed", "bad"];
  return h(
    "li",
    { class: kind, title: check.words },
    h("span", { class: "check-name" }, check.name),
    h("span", { class: "check-value" }, check.value),
    against(check),
    h("span", { class: "check-bound" }, `${check.exact ? "=" : check.least ? "≥" : check.name.startsWith("slos.") ? "<" : "≤"} ${check.bound}`),
    h("span", { class: "check-word" }, word),
  );
}

function checks(root, rows, empty) {
  root.append(rows.length ? h("ul", { class: "checks" }, ...rows.map(judged)) : h("p", { class: "notice" }, empty));
}
