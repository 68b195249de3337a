// Moments in the reader's own time, and how long it is until those that are waited for. The page says
// them in UTC, and this adds to it: without it nothing is missing but the reckoning.
(() => {
  "use strict";
  const units = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1_000]];
  const local = new Intl.DateTimeFormat(undefined, {
    weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit",
    timeZoneName: "short",
  });
  const full = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
  const places = [...document.querySelectorAll("[data-until]")].map((place) => {
    const time = place.querySelector("time");
    const at = Date.parse(time.dateTime);
    const said = document.createElement("span");
    said.className = "countdown";
    place.append(" ", said);
    return { at, said };
  });
  for (const time of document.querySelectorAll("main time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    time.title = `${time.textContent} · ${full.format(at)}`;
  }
  // Whole units, the two largest: seconds only in the last hour, when they matter.
  const span = (left) => {
    const parts = [];
    for (const [name, ms] of units) {
      const count = Math.floor(left / ms);
      left -= count * ms;
      if (count || parts.length) parts.push(`${count} ${name}`);
      if (parts.length === 2) break;
    }
    return parts.join(" ") || "less than a second";
  };
  const tick = () => {
    const now = Date.now();
    let next = Infinity;
    for (const { at, said } of places) {
      const left = at - now;
      const yours = `${local.format(new Date(at))}, your time`;
      said.textContent = left > 0 ? `(in ${span(left)}: ${yours})` : `(due since ${yours})`;
      if (left > 0) next = Math.min(next, left > 3_600_000 ? 30_000 : 1_000);
    }
    if (next < Infinity) setTimeout(tick, next);
  };
  if (places.length) tick();
})();
