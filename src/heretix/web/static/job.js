// A job, live: the server says what changed, and the page shows it. When the connection is lost the
// browser comes back by itself, from the last event it has seen; meanwhile the page says so.
(() => {
  "use strict";
  const place = document.querySelector("[data-job]");
  if (!place || place.hasAttribute("data-ended") || !window.EventSource) return;
  const part = (name) => place.querySelector(`[data-${name}]`);
  const number = new Intl.NumberFormat("en");
  const titles = {
    queued: "Waiting for a worker", running: "Measuring", done: "Done",
    failed: "It failed", cancelled: "Cancelled",
  };
  const money = (value) => {
    if (value === null) return "unknown";
    if (value === 0) return "$0";
    return value >= 1 ? `$${value.toFixed(2)}` : `$${value.toFixed(4)}`;
  };
  const time = (seconds) => {
    if (seconds === null) return "—";
    if (seconds < 1) return "under a second";
    if (seconds < 90) return `${Math.round(seconds)} s`;
    return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
  };
  const line = part("line");
  const say = (text) => { line.textContent = text; line.hidden = !text; };
  let told = -1;
  // A screen reader hears every tenth of the way, not every sample.
  const tell = (state, progress) => {
    const tenth = progress.total ? Math.floor((10 * progress.done) / progress.total) : 0;
    if (tenth === told) return;
    told = tenth;
    part("live").textContent =
      `${titles[state]}: ${progress.done} of ${progress.total || "an unknown number of"} samples`;
  };
  const show = ({ state, progress }) => {
    const gathering = state === "running" && progress.phase === "evidence";
    part("state").textContent = gathering ? "Gathering evidence" : titles[state];
    const waiting = part("waiting");
    if (waiting) waiting.hidden = state !== "queued";
    part("bar").max = progress.total || 1;
    part("bar").value = progress.done;
    part("done").textContent = number.format(progress.done);
    part("total").textContent = progress.total ? number.format(progress.total) : "…";
    part("cached").textContent = number.format(progress.cached);
    part("failed").textContent = number.format(progress.failed);
    part("spent").textContent = money(progress.spent_usd);
    part("eta").textContent = time(progress.eta_s);
    tell(state, progress);
  };
  const source = new EventSource(`/jobs/${encodeURIComponent(place.dataset.job)}/events`);
  source.addEventListener("open", () => say(""));
  const heard = (message) => show(JSON.parse(message.data));
  source.addEventListener("progress", heard);
  source.addEventListener("end", (message) => {
    heard(message);
    source.close();
    // The results are the server's to show.
    location.reload();
  });
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) {
      say("The connection is lost. Load the page again to see how far it is; the job goes on.");
    } else {
      say("The connection is lost; trying again. The job goes on meanwhile.");
    }
  });
})();
