// Times and ratios as reports show them.

const MONEY = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const times = (value) => (known(value) ? `${value.toFixed(2)}×` : NOTHING);
const dollars = (value) => (known(value) ? `$${MONEY.format(value)}` : NOTHING);
const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Time since the start. A page of hours has 1:05, or 1:05:30 where seconds matter, and days before hours beyond
// two; a page of minutes has 0:05 and 1:02:05.
function clock(at, exact = false) {
  const total = Math.max(0, Math.round(at));
  const pad = (value) => String(value).padStart(2, "0");
  const days = total >= 172800 ? Math.floor(total / 86400) : 0;
  const hours = Math.floor(total / 3600) - 24 * days;
  const minutes = Math.floor(total / 60) % 60;
  const seen = PAGE.hours || days || hours ? `${hours}:${pad(minutes)}` : `${minutes}`;
  return `${days ? `${days} d ` : ""}${seen}${exact || !PAGE.hours ? `:${pad(total % 60)}` : ""}`;
}
