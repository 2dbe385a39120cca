// The fleet: replicas, load and latencies of one model at a time, starts in progress, and decisions.

const MINUTES_SHOWN = 15;
const STATES = ["ready", "starting", "pending", "draining"];
const LANES = ["interactive", "standard", "background"];
const inLane = (sample, lane) => (sample[`running_requests ${lane}`] ?? 0) + (sample[`waiting_requests ${lane}`] ?? 0);
const total = (sample, kind) => LANES.reduce((sum, lane) => sum + (sample[`${kind}_requests ${lane}`] ?? 0), 0);
const held = (sample) => (sample.held_requests ?? 0) + (sample.background_held_requests ?? 0);
const ms = (value_s) => (known(value_s) ? 1000 * value_s : null);

// Panels: title, unit, and lines of [label, colour, value of a sample, shape]. A shape is "area", "steps" or "target".
const PANELS = [
  ["Replicas", "", [
    ["ready", "ready", (s) => s.ready, "area"], ["starting", "starting", (s) => s.starting + s.pending, "steps"],
    ["draining", "draining", (s) => s.draining, "steps"], ["lost", "missed", (s) => s.lost, "steps"], ["wanted", "wanted", (s) => s.wanted, "steps"], ["target", "target", (s) => s.target, "target"],
  ]],
  ["Requests", "", [
    ["running", "ok", (s) => total(s, "running"), "area"], ["waiting in engines", "queued", (s) => total(s, "waiting")],
    ["queued for a start", "held", held],
  ]],
  ["Time to first token", "ms", [
    ["P50", "ttft", (s) => ms(s.ttft_p50_s)], ["P95", "held", (s) => ms(s.ttft_p95_s)], ["target", "target", (s, knobs) => ms(knobs.ttft_target_s), "target"],
  ]],
  ["Time between tokens", "ms", [
    ["P50", "ttft", (s) => ms(s.itl_p50_s)], ["P95", "itl", (s) => ms(s.itl_p95_s)], ["target", "target", (s, knobs) => ms(knobs.itl_target_s), "target"],
  ]],
  ["Tokens", "per second", [["generated", "ok", (s) => s.completion_tokens_per_second, "area"], ["of prompts", "queued", (s) => s.prompt_tokens_per_second]]],
  ["Requests by lane", "", [["interactive", "ttft", (s) => inLane(s, "interactive")], ["standard", "ok", (s) => inLane(s, "standard")], ["background", "other", (s) => inLane(s, "background")]]],
  ["Prompt tokens found in the cache", "%", [["cached", "draining", (s) => (known(s.cached_share) ? 100 * s.cached_share : null), "area"]]],
];

function fleetView(root, fleet) {
  let name = null;
  let charts = [];
  const notice = h("div", { "aria-live": "polite" });
  const models = h("section", { "aria-label": "Models and their load" });
  const headline = h("section", { id: "headline", "aria-label": "Now" });
  const variants = h("section", { "aria-label": "Variants of the model", hidden: true });
  const starts = h("section", { "aria-labelledby": "starts-title", hidden: true });
  const panels = h("div.panels");
  const canary = h("section", { "aria-label": "Both versions" });
  const why = h("section", { "aria-label": "The last decision" });
  const history = h("section", { "aria-label": "Last changes" });
  const given = h("section", { "aria-label": "Places that models gave to others" });
  root.append(notice, models, given, headline, canary, variants, starts, why, panels, history);

  const choose = (chosen) => {
    name = chosen;
    restyle();
    update();
  };
  const restyle = () => {
    for (const chart of charts) chart.destroy();
    charts = [];
    panels.replaceChildren();
  };
  const update = () => {
    if (root.hidden || !Object.keys(fleet.models).length) return;
    name = current(fleet, name);
    const [model, knobs] = [fleet.models[name], fleet.knobs.models[name]];
    const sample = fleet.samples.at(-1)?.models[name] ?? {};
    const records = fleet.decisions.filter((record) => record.model === name);
    redrawn(notice, [fleet.policy, fleet.knobs.rejected], () => problems(fleet));
    models.hidden = Object.keys(fleet.models).length < 2;
    const handovers = fleet.decisions.filter((record) => record.gives_to).slice(-10).reverse();
    given.hidden = !handovers.length;
    redrawn(given, handovers.map((record) => record.seq), () => handoverList(handovers));
    redrawn(models, [fleet.models, fleet.samples.at(-1), name], () => modelTable(fleet, name, choose));
    redrawn(headline, [model, sample, knobs], () => headlines(fleet, name, model, sample, knobs));
    canary.hidden = !model.canary;
    redrawn(canary, model.canary, () => (model.canary ? versions(name, model.canary) : []));
    variants.hidden = !model.variants;
    redrawn(variants, model.variants, () => (model.variants ? variantTable(model.variants) : []));
    starts.hidden = !model.starts.length;
    redrawn(starts, model.starts, () => startRows(model.starts));
    const newest = records.findLast((record) => record.terms?.length);
    redrawn(why, [newest?.seq, name], () => decisionNow(name, newest));
    redrawn(history, [records.findLast(isChange)?.seq, name], () => decisions(name, records));
    if (!charts.length) charts = PANELS.map((panel) => chartOf(panels, panel));
    drawCharts(charts, fleet.samples, name, knobs);
  };
  return { update, restyle: () => (restyle(), update()), show: update };
}

function problems({ policy, knobs }) {
  // Screen readers say it once, not every second.
  const silent = policy.silent_s !== null && ["The policy last reported ", h("span", { "aria-live": "off" }, seconds(policy.silent_s)), " ago, so its numbers may be out of date."];
  const never = !policy.reports && "No policy has reported yet.";
  const rejected = knobs.rejected && `The newest knobs are rejected, and the knobs before them stay in force: ${knobs.rejected}`;
  const errors = policy.errors > 0 && `The policy has raised ${policy.errors} errors, and kept the targets.`;
  return [silent, never, rejected, errors].filter(Boolean).map((words) => h("p.problem", words));
}

const money = (value, currency) => new Intl.NumberFormat("en", { style: "currency", currency }).format(value);
const lostOf = (model) => Object.keys(model.lost).length;
// Replicas that hold a device now. Pending ones do not. Variants have prices of their own, in USD.
const costs = ({ prices, currency }, name, model) => (model.variants ? money(model.usd_per_hour, "USD") : prices[name] ? money(prices[name] * (model.ready + model.starting + model.draining + lostOf(model)), currency) : NOTHING);
const nearest = ({ starts }) => starts.reduce((least, { eta_s: eta }) => (eta !== null && (least === null || eta < least) ? eta : least), null);
const phaseWords = (phase) => (phase ?? "").replaceAll("_", " ").replace("kv", "KV");
const stateWords = (model) => (model.state === "loading" ? phaseWords(model.phase) : phaseWords(model.state));

// With the reason if there is one; else how long a start takes.
function stateNote({ state, reason, cold_start_s: start_s }, eta_s) {
  if (state === "loading" && eta_s !== null) return `ready in about ${seconds(Math.ceil(eta_s))}`;
  const start = known(start_s) ? `a start takes ${seconds(start_s)}` : "no start measured yet";
  return reason ?? (state === "idle_at_zero" ? `a request starts a replica; ${start}` : start);
}

function modelTable(fleet, chosen, choose) {
  const row = ([name, model]) => {
    const sample = fleet.samples.at(-1)?.models[name] ?? {};
    const link = h("button", { type: "button", "aria-pressed": String(name === chosen), "data-key": name, onclick: () => choose(name) }, name);
    const cells = [stateWords(model), whole(model.ready), whole(model.target), whole(total(sample, "waiting") + held(sample)), whole(sample.completion_tokens_per_second), seconds(sample.ttft_p95_s), costs(fleet, name, model)];
    return tableRow(link, cells, name === chosen ? "main" : null);
  };
  const heads = ["model", "state", "ready", "target", "waiting", "tokens/s", "TTFT P95", "cost per hour"];
  return [h("h2", "Models"), table("Models", heads, Object.entries(fleet.models).map(row))];
}

// Who gave a place to whom, the newest first.
function handoverList(handovers) {
  const line = (record) => h("li", { "data-key": record.seq }, h("span.at", timeOf(record.at)), ` ${record.model} → ${record.gives_to} `, h("span.reason", reasonOf(record)));
  return [h("h2", "Places that models gave to others"), h("ol.handovers", handovers.map(line))];
}

function headlines(fleet, name, model, sample, knobs) {
  const counts = STATES.slice(1).filter((state) => model[state]).map((state) => `${model[state]} ${state}`);
  const lost = lostOf(model);
  if (lost) counts.push(`${lost} lost`);
  const eta = nearest(model);
  // Samples have two percentiles. Only the one that has the target can meet or miss it.
  const judged = knobs.ttft_percentile;
  const [shown, other] = judged === 50 ? [50, 95] : [95, 50];
  const latency = (kind, ...more) => {
    const [value, target] = [sample[`${kind}_p${shown}_s`], knobs[`${kind}_target_s`]];
    const note = [`target ${seconds(target)} at P${judged}`, `P${other} ${seconds(sample[`${kind}_p${other}_s`])}`, ...more].join(" · ");
    return [`${kind.toUpperCase()} P${shown}, last 30 s`, seconds(value), note, known(value) && shown === judged ? (value <= target ? "good" : "bad") : ""];
  };
  const advised = model.mode === "advise" && "mode advise: nothing changes";
  const holder = h("div");
  figures(holder, [
    ["Replicas", `${model.ready} ready`, [`target ${model.target}, wanted ${model.wanted}`, ...counts, advised].filter(Boolean).join(" · "), model.state === "failed" || lost ? "bad" : ""],
    ["State", stateWords(model), stateNote(model, eta)],
    ["Waiting requests", whole(total(sample, "waiting") + held(sample)), `${whole(total(sample, "running"))} running · ${whole(held(sample))} queued for a start`],
    latency("ttft", "without starts"), latency("itl"),
    ["Tokens per second", compact(sample.completion_tokens_per_second), `${compact(sample.prompt_tokens_per_second)} of prompts · ${percent(sample.cached_share)} cached`],
    ["Cost per hour now", costs(fleet, name, model), model.variants ? `${money(model.dearest_usd_per_hour, "USD")} with the dearest variant alone` : fleet.prices[name] ? `${money(fleet.prices[name], fleet.currency)} for each replica` : "no price in ledger.gpu_hour_prices"],
  ]);
  const lines = Object.entries(model.lost).map(([replica, trouble]) => h("p.problem", `Replica ${replica}: ${trouble}`));
  return [h("h2.unseen", name), ...holder.childNodes, ...lines];
}

// A new version beside the old one: counts, latencies, and shares with their intervals of 95 %.
const SIDES = [["requests", whole], ["refused", whole], ["rescued", whole], ["copies", whole], ["tokens_mean", whole], ["ttft_p50_s", seconds], ["ttft_p95_s", seconds], ["itl_p50_s", seconds], ["itl_p95_s", seconds]];
const RULES = { errors: "requests that failed", length: "answers at their limit of tokens", empty: "empty answers", tool_calls: "tool calls that are not JSON" };

function versions(name, canary) {
  const share = h("p.help", `Share ${percent(canary.share)}, copies ${percent(canary.shadow)}: ${canary.why}`);
  const heading = h("h2", `${name} beside the old version`);
  if (!canary.new) return [heading, share, h("p.help", "The versions are not compared now.")];
  const both = [canary.new, canary.old];
  const interval = ({ bad, of, interval: [low, high] }) => `${whole(bad)} of ${whole(of)} (${percent(low)} to ${percent(high)})`;
  const rows = [
    ...SIDES.map(([side, shown]) => tableRow(side.replaceAll("_", " "), [...both.map((each) => shown(each[side])), ""])),
    ...Object.entries(RULES).map(([rule, words]) => tableRow(words, [...both.map((each) => interval(each[rule])), whole(canary.evidence[rule])])),
  ];
  return [heading, share, table("Both versions", ["", "new", "old", "evidence"], rows)];
}

// The replicas and the price of each variant, and why it gets no more.
function variantTable(variants) {
  const trouble = (each) => (each.dry_s ? `no node; next try in ${seconds(Math.ceil(each.dry_s))}` : each.meets_targets ? "" : "too slow for the targets");
  const row = ([name, each]) => tableRow(name, [whole(each.ready), whole(each.target), whole(each.at_once), digits(each.capacity_rps), money(each.usd_per_hour, "USD"), trouble(each)]);
  return [h("h2", "Variants"), table("Variants", ["variant", "ready", "target", "spare", "requests/s each", "cost per hour", ""], Object.entries(variants).map(row))];
}

// Replicas that start, each as a bar of its phases. Hatched parts are yet to come.
function startRows(starts) {
  const names = [...new Set(starts.flatMap((each) => [...Object.keys(each.durations_s), each.phase, ...Object.keys(each.expected_s)]))];
  const tone = (name) => `tone-${names.indexOf(name) % 7}`;
  const parts = ({ durations_s: done, phase, phase_s: spent, expected_s: expected }) => {
    const order = Object.keys(expected);
    const left = Math.max(0, (expected[phase] ?? 0) - spent);
    const later = order.slice(order.indexOf(phase) + 1).map((name) => [name, expected[name], "yet"]);
    return [...Object.entries(done).map(([name, took]) => [name, took, "done"]), [phase, spent, "now"], [phase, left, "yet"], ...(order.includes(phase) ? later : [])];
  };
  const most = Math.max(1, ...starts.map((each) => parts(each).reduce((sum, [, value]) => sum + value, 0)));
  const row = (start) => {
    const bars = parts(start).map(([name, value, kind]) => h("i", { class: `step ${kind} ${tone(name)}`, title: `${phaseWords(name)}: ${seconds(value)}`, style: `width: ${(100 * value) / most}%` }));
    const eta = start.eta_s === null ? "no start measured yet" : `ready in about ${seconds(Math.ceil(start.eta_s))}`;
    return h("li", h("p", h("b", start.replica), ` ${phaseWords(start.phase)} for ${seconds(start.phase_s)}, ${eta}`), h("div.steps", decorative, bars));
  };
  const keys = names.map((name) => key(tone(name), phaseWords(name)));
  return [h("h2", { id: "starts-title" }, "Starts in progress"), h("p.keys", keys), h("ol.starts", starts.map(row))];
}

function decisionNow(name, record) {
  if (!record) return [h("h2", `Why ${name} has its replicas`), h("p.help", "There is no decision yet.")];
  return [
    h("h2", `Why ${name} has its replicas`), h("p.verdict", h("b", change(record)), " ", chip(record.binding), ` ${reasonOf(record)}`),
    record.counterfactual && h("p", h("b", "Next: "), record.counterfactual), ...story({ ...record, counterfactual: null }).filter(Boolean),
    h("p.facts", `Decided at ${timeOf(record.at)}.`),
  ];
}

function decisions(name, records) {
  const changes = records.filter(isChange).slice(-30).reverse();
  const line = (record) => {
    const summary = h("summary", h("span.at", timeOf(record.at)), h(`span.move.${moved(record)}`, change(record)), chip(record.binding) || h("span"), h("span.reason", reasonOf(record)));
    return h("li", { "data-key": record.seq }, h("details", summary, h("div.story", story(record).filter(Boolean))));
  };
  const list = changes.length ? h("ol.decision-list", { "data-key": name, tabindex: 0, "aria-label": "Decisions" }, changes.map(line)) : h("p.help", "No change yet.");
  return [h("h2", "Last changes"), list];
}
