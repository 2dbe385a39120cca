// The page: three views, the theme, the API key, and the state of the fleet, which all views read.

const VIEWS = [["fleet", "Fleet", fleetView], ["playground", "Playground", playgroundView], ["knobs", "Knobs", knobsView]];

function start() {
  const main = document.getElementById("main");
  const live = document.getElementById("live");
  const fleet = { models: {} };
  let views = [];
  let heardAt = null; // of the last event, Unix time in seconds
  const build = () => {
    const made = VIEWS.map(([id, title, make]) => {
      const heading = h("h2.unseen", title);
      const root = h("div.view", { id: `view-${id}`, hidden: true }, heading);
      return { id, root, title, ...make(root, fleet) };
    });
    main.replaceChildren(...made.map(({ root }) => root));
    views = made;
    route();
  };
  const route = () => {
    const shown = views.find(({ id }) => location.hash === `#${id}`) ?? views[0];
    if (!shown) return;
    for (const view of views) view.root.hidden = view !== shown;
    for (const link of document.querySelectorAll("nav a")) {
      if (link.hash === `#${shown.id}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${shown.title} · Tideserve`;
    shown.show?.();
  };
  addEventListener("hashchange", route);
  // The address keeps the name of the view.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  const say = (words, kind) => {
    live.className = kind;
    if (live.textContent !== words) live.textContent = words;
  };

  const theme = document.getElementById("theme");
  theme.setAttribute("aria-label", "Change between light and dark");
  const restyle = () => views.forEach((view) => view.restyle?.());
  theme.addEventListener("click", () => {
    const page = document.documentElement;
    page.dataset.theme = getComputedStyle(page).getPropertyValue("--ground-offered").includes("Dark") ? "dark" : "light";
    restyle();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);

  followFleet({
    event(parts) {
      if (parts.prices) Object.assign(fleet, { samples: [], decisions: [] }); // the first of a stream
      const { samples = [], decisions = [], ...rest } = parts;
      Object.assign(fleet, rest);
      if (samples.length) fleet.samples = [...fleet.samples, ...samples].slice(-180);
      if (decisions.length) fleet.decisions = lastChanges([...fleet.decisions, ...decisions]);
      if (!views.length) build();
      else if (parts.prices) route(); // the server may serve other models now
      heardAt = Date.now() / 1000;
      say("live", "good");
      for (const view of views) view.update?.();
    },
    lost: (why) => say(`connecting again: ${why}${views.length ? ` The page shows the state at ${timeOf(heardAt)}.` : ""}`, "bad"),
    // Nothing of the fleet stays on the page without a key.
    async key(why) {
      views = [];
      for (const name of Object.keys(fleet)) delete fleet[name];
      fleet.models = {};
      say("", "");
      apiKey = await keyForm(main, why);
      main.replaceChildren();
    },
  });
}

// Asks for an API key, and resolves with it.
function keyForm(main, why) {
  return new Promise((done) => {
    const input = h("input", { type: "password", id: "key", autocomplete: "off", required: true, pattern: "\\s*[!-~]+\\s*", title: "An API key is printable ASCII without spaces.", "aria-describedby": "key-help" });
    const onsubmit = (event) => {
      event.preventDefault();
      done(input.value.trim());
    };
    const form = h("form.key-form", { onsubmit }, h("label", { for: "key" }, "API key"), input, h("button", { type: "submit" }, "Open"));
    const words = "The page keeps the key in its memory, until you close or reload the page.";
    main.replaceChildren(h("section", h("h2", "This server needs an API key"), why && h("p.problem", { role: "alert" }, why), form, h("p.help", { id: "key-help" }, words)));
    input.focus();
  });
}

const timeOf = (at) => new Date(1000 * at).toLocaleTimeString("en-GB");
const isChange = ({ kind }) => kind !== "heartbeat";
const current = ({ models }, name) => (models[name] ? name : Object.keys(models)[0]);

// The last 200 changes, and each model's newest record. Most records are heartbeats, which only the newest counts of.
function lastChanges(records) {
  const newest = new Map(records.map((record) => [record.model, record]));
  return [...new Set([...records.filter(isChange).slice(-200), ...newest.values()])].sort((a, b) => a.seq - b.seq);
}

// Draws `element` again if `key`, which says all that is drawn, has changed.
function redrawn(element, key, draw) {
  const text = JSON.stringify(key);
  if (element.drawnFor === text) return;
  element.drawnFor = text;
  refill(element, [draw()].flat().filter(Boolean));
}

// Makes `made` the content of `element`. What is of the same kind, and has the same `data-key`, is changed in its place,
// so that it keeps the focus, the scroll position, its listeners, and open details.
function refill(element, made) {
  const old = [...element.childNodes];
  const like = (node) => (each) => each?.nodeName === node.nodeName && each.dataset?.key === node.dataset?.key;
  const kept = (node, index) => (node.dataset?.key ? old.find(like(node)) : [old[index]].find(like(node)));
  const content = made.map((node, index) => {
    const found = kept(node, index);
    if (!found) return node;
    if (found.data !== node.data) found.data = node.data;
    if (!node.attributes) return found;
    for (const { name, value } of node.attributes) if (found.getAttribute(name) !== value) setAll(found, { [name]: value });
    for (const { name } of [...found.attributes]) if (name !== "open" && !node.hasAttribute(name)) found.removeAttribute(name);
    refill(found, [...node.childNodes]);
    found.reset?.(); // a form shows the values that it was drawn with
    return found;
  });
  for (const node of old) if (!content.includes(node)) node.remove();
  content.forEach((node, index) => node === element.childNodes[index] || element.insertBefore(node, element.childNodes[index]));
}
