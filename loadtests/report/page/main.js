// Puts the page together.

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const section = (name) => document.getElementById(name);
  const store = storeOf([prepare(data)], 0);
  themeButton();
  stamp(section("stamp"), data.verdict);
  reasons(section("reasons"), data.verdict);
  headline(section("headline"), data);
  checks(section("checks"), data.verdict.checks, "The scenario sets no bounds.");
  timeline(section("timeline"), store);
  decisions(section("decisions"), store);
  requests(section("requests"), data);
  distribution(section("ttft"), data.curves.ttft, { all: data.bounds.ttft, warm: data.bounds.warm }, "ttft", "No request was sent.");
  distribution(section("itl"), data.curves.itl, { all: data.bounds.itl }, "itl", "No answer had two pieces.");
  holds(section("holds"), data);
  latencies(section("latencies"), data);
  outcomes(section("outcomes"), data);
  troubles(section("troubles"), data);
  costs(section("costs"), data);
  client(section("client"), data);
  facts(section("run"), data);
}

start();
