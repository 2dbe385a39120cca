// The server: requests with the API key, which is kept in this page's memory only, and event streams.

const ROOT = new URL("..", document.currentScript.src);
const SILENT_S = 40; // the server sends at least a comment every 15 s
let apiKey = "";

// Fails only if it is aborted. Without a connection it returns a refusal.
async function ask(path, body = undefined, more = {}) {
  const headers = { ...more.headers, ...(apiKey && { Authorization: `Bearer ${apiKey}` }) };
  const sent = body === undefined ? { headers } : { headers: { ...headers, "Content-Type": "application/json" }, method: "POST", body: JSON.stringify(body) };
  try {
    return await fetch(new URL(path, ROOT), { ...more, ...sent });
  } catch (error) {
    if (more.signal?.aborted) throw error;
    return Response.json({ error: { message: "The server does not answer." } }, { status: 503 });
  }
}

// The words of a refusal, which has the shape of an OpenAI error.
async function refusal(reply) {
  const text = await reply.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `${reply.status} ${text.slice(0, 300)}`;
  }
}

// Yields the data of each event as { data }, and each comment as { comment }.
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const read = () => reader.read().catch(() => Promise.reject(new Error("The connection was lost.")));
  let rest = "";
  try {
    for (let part = await read(); !part.done; part = await read()) {
      const frames = (rest + part.value).split("\n\n");
      rest = frames.pop();
      for (const line of frames.flatMap((frame) => frame.split("\n"))) {
        if (line.startsWith("data: ")) yield { data: line.slice(6) };
        else if (line.startsWith(": ")) yield { comment: line.slice(2) };
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // frees the connection if the caller stops early
  }
}

const pause = (wait_s) => new Promise((done) => setTimeout(done, 1000 * wait_s));

const whileShown = () => new Promise((done) => (document.hidden ? document.addEventListener("visibilitychange", done, { once: true }) : done()));

// Passes every event of the fleet to `on.event`, for ever. A lost or silent connection is opened again after 1 to 15 s.
// A hidden tab has none: browsers open at most six to a server over HTTP/1.1, and chats need them.
async function followFleet(on) {
  for (let wait_s = 1; ; wait_s = Math.min(2 * wait_s, 15)) {
    await whileShown();
    const connection = new AbortController();
    document.addEventListener("visibilitychange", () => connection.abort(new Error("The tab was hidden.")), { signal: connection.signal });
    let timer = null;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => connection.abort(new Error("The server is silent.")), 1000 * SILENT_S);
    };
    try {
      heard();
      const reply = await ask("autoscaling/events", undefined, { signal: connection.signal });
      if (reply.status === 401) {
        await on.key(apiKey ? await refusal(reply) : "");
        wait_s = 0.5;
        continue;
      }
      if (!reply.ok) throw new Error(await refusal(reply));
      wait_s = 0.5;
      for await (const { data } of eventsOf(reply.body)) {
        heard();
        if (data) on.event(JSON.parse(data));
      }
      on.lost("The stream has ended.");
    } catch (error) {
      on.lost(error.message);
    } finally {
      clearTimeout(timer);
      connection.abort();
    }
    if (!document.hidden) await pause(wait_s);
  }
}
