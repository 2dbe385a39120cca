// Time since the start of the run: 0:05, 1:04, and 1:02:05 from an hour on.
function clock(at) {
  const total = Math.max(0, Math.round(at));
  const pad = (value) => String(value).padStart(2, "0");
  const hours = Math.floor(total / 3600);
  const minutes = Math.floor(total / 60) % 60;
  return hours ? `${hours}:${pad(minutes)}:${pad(total % 60)}` : `${minutes}:${pad(total % 60)}`;
}
