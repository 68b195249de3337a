// An errand, live: asks the server how far it is, and lets the server show what came of it.
(() => {
  "use strict";
  const place = document.querySelector("[data-errand]");
  if (!place || place.hasAttribute("data-ended")) return;
  const address = `/episodes/errands/${encodeURIComponent(place.dataset.errand)}/progress`;
  const part = (name) => place.querySelector(`[data-${name}]`);
  const number = new Intl.NumberFormat("en");
  let told = -1;
  const show = ({ done, total }) => {
    if (part("bar")) part("bar").value = done;
    if (part("done")) part("done").textContent = number.format(done);
    // A screen reader hears every quarter of the way, not every sample.
    const quarter = total ? Math.floor((4 * done) / total) : 0;
    if (quarter === told) return;
    told = quarter;
    part("live").textContent = `${done} of ${total} samples`;
  };
  const look = async () => {
    try {
      const answer = await fetch(address, { headers: { accept: "application/json" } });
      if (!answer.ok) return location.reload();
      const found = await answer.json();
      show(found);
      if (found.ended) return location.reload();
    } catch {
      // The connection is lost for a moment; the work goes on, and so does the asking.
    }
    setTimeout(look, 700);
  };
  setTimeout(look, 400);
})();
