// Shows the claims that have all the words typed. Without it, the whole list stands there.
(() => {
  "use strict";
  const box = document.querySelector("[data-filter]");
  if (!box) return;
  const input = box.querySelector("input");
  const told = document.querySelector("[data-count]");
  const rows = Array.from(document.querySelectorAll(".all-claims li"), (row) => ({
    row,
    text: row.textContent.toLocaleLowerCase(),
  }));
  const filter = () => {
    const words = input.value.toLocaleLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { row, text } of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    told.textContent = `${shown} of ${rows.length} claims`;
  };
  box.hidden = false;
  input.addEventListener("input", filter);
})();
