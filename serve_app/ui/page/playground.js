// The playground: a chat with any served model, and the figures of each answer.

const WAIT_WORDS = { pending_capacity: "the cluster has no room for it yet", requested: "it has no process yet", busy: "all replicas are full", first_token: "one has the request, and its first token is not there yet", rollout_failed: "none can start, because the last rollout failed", unknown: "its phase is not known" };
const WAIT = /phase=(\S+) eta_s=(\S+)/;

function playgroundView(root, fleet) {
  const turns = []; // the messages of the chat, as the API takes them
  let stop = null;
  let answer = null; // the newest
  const models = h("select", { id: "model" });
  const system = h("textarea", { id: "system", rows: 2 });
  const temperature = h("input", { id: "temperature", type: "number", min: 0, max: 2, step: 0.1, value: "0.7", required: true });
  const most = h("input", { id: "most", type: "number", min: 1, max: 1000000, step: 1, value: "256", required: true });
  const prompt = h("textarea", { id: "prompt", rows: 3, required: true, placeholder: "What is a tide?" });
  const send = h("button", { type: "submit" }, "Send");
  const stopping = h("button", { type: "button", disabled: true, onclick: () => stop?.abort() }, "Stop");
  const said = h("p.help", { role: "status" });
  const talk = h("ol.talk", { tabindex: 0, "aria-label": "Chat" });
  const code = h("pre", { tabindex: 0, hidden: true, role: "group", "aria-label": "Code" });
  const field = (id, label, control) => h("div.field", h("label", { for: id }, label), control);

  const body = (messages) => ({
    model: models.value, messages: [...(system.value.trim() ? [{ role: "system", content: system.value }] : []), ...messages],
    temperature: Number(temperature.value), max_tokens: Number(most.value), stream: true, stream_options: { include_usage: true },
  });
  const copy = async (write) => {
    if (![temperature, most].every((each) => each.reportValidity())) return;
    const asked = prompt.value.trim() ? [{ role: "user", content: prompt.value }] : [];
    const messages = [...turns, ...asked];
    code.textContent = write(body(messages.length ? messages : [{ role: "user", content: "What is a tide?" }]));
    code.hidden = false;
    // Browsers offer the clipboard only to secure pages.
    said.textContent = await (navigator.clipboard?.writeText(code.textContent).then(() => "Copied.", () => "") ?? "");
  };
  const clear = () => {
    stop?.abort();
    turns.length = 0;
    talk.replaceChildren();
  };
  const onsubmit = async (event) => {
    event.preventDefault();
    if (stop || !prompt.value.trim()) return;
    const asked = { role: "user", content: prompt.value };
    prompt.value = "";
    stop = new AbortController();
    [send.disabled, stopping.disabled] = [true, false];
    answer = answerOf(talk, asked.content);
    update();
    const text = await stream(body([...turns, asked]), answer, stop.signal);
    answer.waits = false;
    // A new chat, which stops the answer, has no place for it. A prompt without an answer can be sent again.
    if (answer.item.isConnected) {
      if (text) turns.push(asked, { role: "assistant", content: text });
      else prompt.value ||= asked.content;
    }
    stop = null;
    [send.disabled, stopping.disabled] = [false, true];
    prompt.focus();
  };
  const bar = h("div.controls", send, stopping, button("New chat", null, clear), h("span.buttons", button("As curl", "Copy this request as a curl command", () => copy(asCurl)), button("As Python", "Copy this request as Python", () => copy(asPython))));
  const onkeydown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) form.requestSubmit();
    else return;
    event.preventDefault();
  };
  prompt.addEventListener("keydown", onkeydown);
  const settings = h("div.fields", field("model", "Model", models), field("temperature", "Temperature", temperature), field("most", "Max tokens", most));
  const form = h("form", { onsubmit }, settings, field("system", "System prompt", system), field("prompt", "Prompt (Enter sends, Shift+Enter breaks the line)", prompt), bar, said, code);
  root.append(h("section", { "aria-label": "Request" }, form), h("section", { "aria-label": "Answers" }, talk));

  const show = async () => {
    const reply = await ask("v1/models");
    said.textContent = reply.ok ? "" : await refusal(reply);
    if (!reply.ok) return;
    const names = (await reply.json()).data.map(({ id }) => id);
    const chosen = models.value;
    models.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    if (names.includes(chosen)) models.value = chosen;
  };
  // The fleet's state comes every second, and comments in the stream every few seconds.
  const update = () => {
    const model = fleet.models[models.value];
    if (answer?.waits && model?.state === "loading") answer.say(startWords(model.phase, nearest(model)));
  };
  return { show, update };
}

// Adds a question with room for its answer.
function answerOf(talk, question) {
  const [thought, text, status] = [h("p.thought"), h("p.text"), h("p.help", { role: "status" }, "sent")];
  const figuresOf = h("dl.entries");
  const item = h("li", h("p.question", question), thought, text, status, figuresOf);
  talk.append(item);
  const last = () => (talk.scrollTop = talk.scrollHeight);
  last();
  return {
    item,
    waits: true,
    add(reasoning, content) {
      this.waits = false;
      if (reasoning) thought.append(reasoning);
      if (content) text.append(content);
      last();
    },
    say: (words, kind = "help") => Object.assign(status, { className: kind, textContent: words }),
    figures(pairs) {
      figuresOf.replaceChildren(...entries(pairs).childNodes);
      last();
    },
  };
}

// Streams an answer, and returns its text; "" without one.
async function stream(request, answer, signal) {
  const began = performance.now();
  const seen = { first: null, last: null, parts: 0, usage: {}, latency: {}, trace: null, end: null };
  let text = "";
  const draw = () => answer.figures(figuresOf(seen, began));
  try {
    const reply = await ask("v1/chat/completions", request, { signal, headers: { "X-Tideserve-Trace": "1" } });
    if (!reply.ok) throw new Error(await refusal(reply));
    for await (const { data, comment } of eventsOf(reply.body)) {
      if (comment) noteComment(comment, answer, seen);
      const event = data && data !== "[DONE]" ? JSON.parse(data) : {};
      if (event.error) throw new Error(event.error.message);
      const { delta = {}, finish_reason: end } = event.choices?.[0] ?? {};
      const reasoning = delta.reasoning;
      if (delta.content || reasoning) {
        seen.last = performance.now();
        seen.first ??= seen.last;
        seen.parts += 1;
        text += delta.content ?? "";
        answer.add(reasoning, delta.content);
        answer.say("streaming");
      }
      seen.end = end ?? seen.end;
      Object.assign(seen, event.usage && { usage: event.usage }, event.latency && { latency: event.latency });
      draw();
    }
    answer.say(seen.end === "length" ? "The answer has reached its maximum of tokens." : text ? "done" : "The answer is empty.");
  } catch (error) {
    answer.say(signal.aborted ? "stopped" : error.message, signal.aborted ? "help" : "problem");
  }
  return text;
}

// Comments tell of the wait for a replica, and have the request's trace: with the first event, after each move, at the end.
function noteComment(comment, answer, seen) {
  if (comment.startsWith("trace ")) seen.trace = JSON.parse(comment.slice(6));
  const wait = WAIT.exec(comment);
  if (wait) answer.say(startWords(wait[1], wait[2] === "unknown" ? null : Number(wait[2])));
}

const startWords = (phase, eta_s) => `Waiting for a replica: ${WAIT_WORDS[phase] ?? phaseWords(phase)}${known(eta_s) ? `, ready in about ${seconds(Math.ceil(eta_s))}` : ""}`;

// By the browser's clock while the answer comes, and by the server's when it has come.
function figuresOf({ first, last, parts, usage, latency, trace }, began) {
  if (first === null) return [];
  const between = parts > 1 ? (last - first) / (parts - 1) : null;
  const spans = trace?.spans ?? [];
  const replica = spans.findLast(({ name }) => name === "attempt")?.attributes["tideserve.replica"];
  const moves = spans.filter(({ name }) => name === "continuation").length;
  const tokens = usage.completion_tokens ?? parts;
  return [
    ["TTFT", seconds((latency.ttft_ms ?? first - began) / 1000)], ["ITL, mean", seconds((latency.inter_token_ms ?? between) / 1000)],
    ["Tokens", usage.prompt_tokens === undefined ? whole(tokens) : `${whole(tokens)} + ${whole(usage.prompt_tokens)} of the prompt`],
    ["Tokens per second", latency.tokens_per_second ? digits(latency.tokens_per_second) : NOTHING], ["Cached tokens", whole(latency.cached_tokens)],
    ["Waited for a start", latency.cold_wait_ms === undefined ? NOTHING : seconds(latency.cold_wait_ms / 1000)],
    ["Replica", replica ?? NOTHING], ["Moves", whole(moves)],
  ];
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function asCurl(request) {
  const lines = [`curl -N ${quoted(new URL("v1/chat/completions", ROOT).href)}`, "-H 'Content-Type: application/json'"];
  if (apiKey) lines.push('-H "Authorization: Bearer $TIDESERVE_API_KEY"');
  return [...lines, `-d ${quoted(JSON.stringify(request))}`].join(" \\\n  ");
}

function asPython({ model, messages, temperature, max_tokens: most }) {
  const key = apiKey ? 'os.environ["TIDESERVE_API_KEY"]' : '"none"';
  return [
    ...(apiKey ? ["import os", ""] : []), "from openai import OpenAI", "", `client = OpenAI(base_url=${JSON.stringify(new URL("v1", ROOT).href)}, api_key=${key})`,
    "stream = client.chat.completions.create(", `    model=${JSON.stringify(model)},`, `    messages=${JSON.stringify(messages)},`,
    `    temperature=${temperature},`, `    max_tokens=${most},`, "    stream=True,", ")", "for chunk in stream:",
    '    print(chunk.choices[0].delta.content or "", end="", flush=True)',
  ].join("\n");
}
