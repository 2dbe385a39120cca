// Puts the page together.

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const section = (name) => document.getElementById(name);
  const result = data.results[data.main];
  const store = storeOf(data.results.map(prepare), data.main);
  themeButton();
  headline(section("headline"), data, result);
  timeline(section("timeline"), store);
  decisions(section("decisions"), store);
  frontier(section("frontier"), data);
  latency(section("latency"), result);
  costs(section("costs"), data);
  run(section("run"), result);
}

start();
