// Numbers and times as they are read. The spaces before units do not break.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const NOTHING = "–";

const known = (value) => Number.isFinite(value);
const whole = (value) => (known(value) ? WHOLE.format(value) : NOTHING);
const digits = (value, count = 3) => String(Number(value.toPrecision(count)));

function compact(value) {
  if (!known(value) || value < 1e4) return whole(value);
  return value >= 1e6 ? `${digits(value / 1e6)}M` : `${digits(value / 1e3)}k`;
}

// Seconds up to ten minutes, because bounds of cold starts are set, and compared, in seconds.
function seconds(value) {
  if (!known(value)) return NOTHING;
  if (value < 0.9995) return `${digits(1000 * value)}\u00a0ms`;
  if (value < 600) return `${digits(value)}\u00a0s`;
  return value < 7200 ? `${digits(value / 60)}\u00a0min` : `${digits(value / 3600)}\u00a0h`;
}

// Not rounded up to 100 % while anything is missing.
function percent(share) {
  if (!known(share)) return NOTHING;
  const shown = 100 * share;
  if (shown >= 100) return "100\u00a0%";
  return shown >= 99.95 ? `${(Math.floor(shown * 100) / 100).toFixed(2)}\u00a0%` : `${shown.toFixed(1)}\u00a0%`;
}
