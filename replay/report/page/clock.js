// Time since the start of the replay: 1:05, or 1:05:30 where seconds matter; days before hours beyond two.
function clock(at, exact = false) {
  const total = Math.max(0, Math.round(at));
  const pad = (value) => String(value).padStart(2, "0");
  const days = total >= 172800 ? Math.floor(total / 86400) : 0;
  const rest = total - 86400 * days;
  const day = days ? `${days} d ` : "";
  const minutes = `${Math.floor(rest / 3600)}:${pad(Math.floor(rest / 60) % 60)}`;
  return day + (exact ? `${minutes}:${pad(rest % 60)}` : minutes);
}
