// The verdict, the figures one asks for first, and every demand beside its bound.

const STAMPS = {
  pass: ["PASS", "M4 12.500L9.500 18L20 6.500", "M12 1a11 11 0 1 0 .001 0Z"],
  fail: ["FAIL", "M7.500 7.500L16.500 16.500M16.500 7.500L7.500 16.500", "M7.500 1H16.500L23 7.500V16.500L16.500 23H7.500L1 16.500V7.500Z"],
  invalid: ["INVALID", "M12 8.500V15M12 18.300V18.500", "M12 1.500L23.500 22H.500Z"],
};

function stamp({ overall, judged, missed }) {
  const [word, sign, shape] = STAMPS[overall];
  const kept = judged ? `${whole(judged - missed)} of ${whole(judged)} bounds kept` : "no bound was judged";
  const root = document.getElementById("stamp");
  root.className = `stamp ${overall}`;
  root.append(
    s("svg", { viewBox: "0 0 24 24", width: 30, height: 30, ...decorative }, path("stamp-shape", shape), path("stamp-sign", sign)),
    h("b", word), h("span", overall === "invalid" ? "its figures cannot be trusted" : kept),
  );
}

function reasons(root, { verdict }) {
  stamp(verdict);
  root.hidden = !verdict.invalid.length;
  if (root.hidden) return;
  root.className = "alarm";
  for (const name of ["headline", "checks"]) document.getElementById(name).classList.add("void");
  root.append(h("ul", verdict.invalid.map((reason) => h("li", reason))));
}

function headline(root, { figures: found, latencies, bounds, price_per_gpu_hour: price }) {
  const of = (name) => latencies.find((each) => each.name === name);
  const median = (latency) => (latency?.count ? `P50 ${latencyWords(latency.p50)}` : "none measured");
  const latency = (name) => {
    const bound = bounds[name.toLowerCase()].p99;
    const { count, p99 } = of(name) ?? {};
    const tone = !known(bound) || p99 === undefined ? "" : !isNever(p99) && p99 < bound ? "good" : "bad";
    const note = `${median(of(name))}${known(bound) ? `, bound ${seconds(bound)}` : ""}`;
    return [`${name} P99`, count ? latencyWords(p99) : NOTHING, note, tone];
  };
  const { error_rate: errors, error_bound: most, cold, peaks, goodput } = found;
  const bounded = known(most);
  const rate = (value) => digits(value ?? 0);
  const bound = bounded ? `, bound ${digits(100 * most)}\u00a0%` : "";
  const tone = bounded ? (errors < most ? "good" : "bad") : "";
  const cost = known(found.dollars) ? `${dollars(found.dollars)} at ${dollars(price)} an hour` : "no price is known";
  const wait = of("cold wait");
  const { prompts } = found;
  figures(root, [
    latency("TTFT"), latency("ITL"),
    ["Errors", whole(found.errors), `${percent(errors)} of ${whole(found.requests)} requests${bound}`, tone],
    cold > 0 && ["Cold requests", whole(cold), `${median(wait)}, longest ${latencyWords(wait.max)}`],
    peaks.length > 0 && ["Peak replicas", peaks.map(whole).join(" + "), readyWords(found)],
    known(goodput) && ["Goodput", percent(goodput), `${rate(found.goodput_rps)} good requests/s, ${rate(found.offered_rps)} offered`],
    ["Throughput", compact(Math.round(found.output_tokens_per_s ?? 0)), `tokens/s; ${rate(found.answered_rps)} requests/s answered`],
    prompts && ["Prompt tokens", compact(prompts.prompt_tokens), cachedWords(prompts)],
    known(found.gpu_seconds) && ["GPU-seconds", compact(found.gpu_seconds), cost],
  ]);
}

function cachedWords({ cached_share: cached, infinite_cache_share: infinite }) {
  const shown = known(cached) ? `${percent(cached)} found in the prefix cache` : "the server did not report how many were cached";
  return known(infinite) ? `${shown}; ${percent(infinite)} in one unlimited cache` : shown;
}

function readyWords({ peaks, held_to_ready_s: waits }) {
  if (!Math.max(...peaks)) return "no replica was ever ready";
  const longest = Math.max(...waits.filter(known));
  return known(longest) ? `first ready ${seconds(longest)} after the first queued request` : "no request had to wait for one";
}

// A bar of a value against its bound, which is a line at half of the width; what is beyond twice the bound is cut.
function against({ over: share, exact, ok }) {
  if (share === null || share === undefined || exact) return h("span.against.none");
  const over = isNever(share) ? Infinity : share;
  const title = isNever(share) ? "never" : `${digits(over)} times its bound`;
  const bar = h("i", { style: `width:${(Math.min(over, 2) * 50).toFixed(1)}%` });
  return h("span", { class: `against${ok ? "" : " missed-bound"}`, title }, bar, h("b"));
}

function checks(root, rows, empty) {
  const judged = (check) => {
    const { ok, exact, least, name, value, bound, words } = check;
    const [word, kind] = ok === null ? ["not judged", "unjudged"] : ok ? ["✓ kept", "good"] : ["✗ missed", "bad"];
    const sign = exact ? "=" : least ? "≥" : name.startsWith("slos.") ? "<" : "≤";
    const part = (which, text) => h(`span.check-${which}`, text);
    const parts = [part("name", name), part("value", value), against(check), part("bound", `${sign} ${bound}`), part("word", word)];
    return h("li", { class: kind, title: words }, parts);
  };
  root.append(rows.length ? h("ul.checks", rows.map(judged)) : notice(empty));
}

function client(root, { client: { rows, cpu_share: share, processes } }) {
  checks(root, rows, "");
  const used = known(share) ? `The busiest of ${whole(processes)} client ${processes === 1 ? "process" : "processes"} used ${percent(share)} of a core. ` : "";
  root.append(help(`${used}A run whose client was later than this is invalid, because the client's own delay would be counted as the server's.`));
}
