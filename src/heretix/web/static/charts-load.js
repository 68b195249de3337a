// Fetches the charts of a page, each on its own, and has them drawn. Without them, the page's
// tables hold the same numbers.
(() => {
  "use strict";
  const load = async (place) => {
    const note = place.querySelector("[data-fallback]");
    try {
      const answer = await fetch(place.dataset.src, { credentials: "same-origin" });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const holder = document.createElement("script");
      holder.type = "application/json";
      holder.id = place.dataset.chart;
      holder.textContent = await answer.text();
      place.after(holder);
    } catch (error) {
      if (note) note.textContent = `The chart couldn't be loaded (${error.message}).`;
    }
  };
  const start = async () => {
    await Promise.all(Array.from(document.querySelectorAll("[data-chart][data-src]"), load));
    if (window.heretixCharts) await window.heretixCharts.mount(document);
  };
  start();
})();
