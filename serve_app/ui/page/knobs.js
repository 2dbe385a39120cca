// Knobs in force, with their bounds. An admin may change them.

function knobsView(root, fleet) {
  let scope = null;
  const bar = h("div.controls");
  const said = h("div", { role: "status" });
  const rows = h("div.knobs");
  root.append(h("section", { "aria-label": "Knobs" }, bar, said, rows));

  const set = async (name, value) => {
    said.replaceChildren(h("p.help", "sent"));
    const reply = await ask("autoscaling/knobs", { model: scope, knobs: { [name]: value } });
    const { changes = [], in_force: inForce } = reply.ok ? await reply.json() : {};
    const lines = reply.ok && !changes.length ? ["No value in force changes."] : changes;
    const problem = reply.ok ? inForce === false && "This change is not in force yet. A later change may have replaced it." : await refusal(reply);
    said.replaceChildren(h("div", lines.map((line) => h("p.changed", line)), problem && h("p.problem", problem)));
  };
  const update = () => {
    if (root.hidden || !fleet.knobs) return;
    const scopes = [...Object.keys(fleet.knobs.models), "ingress"];
    scope = scopes.includes(scope) ? scope : scopes[0];
    redrawn(bar, scopes, () => [
      h("label", "Knobs of ", choice("Knobs of", scopes.map((each) => [each, each]), scope, (chosen) => ((scope = chosen), said.replaceChildren(), update()))),
      !fleet.may_set_knobs && h("span", "Only an admin key may change knobs. A server without keys allows changes on a loopback address."),
    ]);
    const values = scope === "ingress" ? fleet.knobs.ingress : fleet.knobs.models[scope];
    const { properties } = fleet.knob_schemas[scope === "ingress" ? "ingress" : "model"];
    // Only what changed is drawn again, so that a value that is being typed stays.
    const old = new Map([...rows.children].map((row) => [row.dataset.name, row]));
    const row = ([name, schema]) => {
      const found = old.get(name) ?? h("div.knob", { "data-name": name });
      redrawn(found, [scope, values[name]], () => knobRow(name, schema, values[name], fleet.may_set_knobs, set));
      return found;
    };
    const made = Object.entries(properties).map(row);
    if (made.length !== rows.children.length || made.some((each, index) => each !== rows.children[index])) rows.replaceChildren(...made);
  };
  return { update, show: update };
}

const knobText = (value) => (value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));

// Words between backticks are code.
const coded = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", part) : part));

// The schema of the values other than null, and its bounds in words.
function boundsOf(schema) {
  const own = schema.anyOf?.find(({ type }) => type !== "null") ?? schema;
  const { minimum, exclusiveMinimum: above, maximum, enum: choices } = own;
  const words = [known(minimum) && `at least ${minimum}`, known(above) && `above ${above}`, known(maximum) && `at most ${maximum}`, schema.anyOf && "or none"];
  const told = words.filter(Boolean).join(", ");
  return { own, choices: own.type === "boolean" ? [true, false] : choices, words: told && `${told[0].toUpperCase()}${told.slice(1)}.` };
}

function knobRow(name, schema, value, mayChange, set) {
  const { own, choices, words } = boundsOf(schema);
  const initial = schema.default === undefined ? undefined : knobText(schema.default);
  const id = `knob-${name}`;
  const label = h("label", { for: id }, name);
  const about = h("span.help", { id: `${id}-help` }, coded([schema.description?.replace(/\s+/g, " "), words].filter(Boolean).join(" ")), initial !== undefined && initial !== knobText(value) && ` Default of Tideserve: ${initial}.`);
  if (!mayChange) return [h("span", h("b", name)), h("span", knobText(value)), about];
  const told = { id, "aria-describedby": `${id}-help` };
  const control = choices ? h("select", told, choices.map((each) => h("option", { value: JSON.stringify(each), selected: each === value }, knobText(each)))) : h("input", { ...told, type: "text", value: knobText(value), autocomplete: "off", spellcheck: "false" });
  const read = () => {
    if (choices) return JSON.parse(control.value);
    const text = control.value.trim();
    if (text === "none" || text === "default") return text === "none" ? null : text;
    try {
      return JSON.parse(text);
    } catch {
      return own.type === "string" ? text : control.value; // the server says what is wrong with it
    }
  };
  const onsubmit = (event) => {
    event.preventDefault();
    set(name, read());
  };
  const buttons = h("span.buttons", h("button", { type: "submit", "aria-label": `Set ${name}` }, "Set"), h("button", { type: "reset", title: `Reset ${name}`, onclick: () => set(name, "default") }, "Reset"));
  return h("form", { onsubmit }, label, control, buttons, about);
}
