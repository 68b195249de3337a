// Draws the charts of a page: every element with `data-chart="ID"` shows the specification in
// the element `#ID`. What stood in it (a picture or a table for readers without scripts) goes.
// Expressions are interpreted, and no style is added: a strict content security policy holds.
const options = {
  mode: "vega-lite",
  ast: true,
  actions: false,
  renderer: "svg",
  defaultStyle: false,
  tooltip: { disableDefaultStyle: true },
};

async function draw(place) {
  const source = document.getElementById(place.dataset.chart);
  if (!source || place.dataset.drawn) return;
  place.dataset.drawn = "1";
  const stage = document.createElement("div");
  try {
    await vegaEmbed(stage, JSON.parse(source.textContent), options);
    place.replaceChildren(stage, ...place.querySelectorAll("figcaption"));
  } catch (error) {
    console.error("chart", place.dataset.chart, error);
  }
}

function mount(root) {
  return Promise.all(Array.from(root.querySelectorAll("[data-chart]"), draw));
}

window.heretixCharts = { mount };
if (document.readyState === "loading") {
  document.addEventListener("DOMContentLoaded", () => mount(document));
} else {
  mount(document);
}
