// Fetches the charts of a page, each on its own, and has them drawn. Without them, the page's
// tables hold the same numbers.
(() => {
  "use strict";
  const NARROW = "(max-width: 40rem)";
  const AXIS = 58;
  const NAMES = 64;
  const pen = document.createElement("canvas").getContext("2d");

  const at = (part) => part.encoding?.x?.value;
  const isText = (part) => part.mark?.type === "text";
  // Lines of at most `room` pixels, measured: fonts differ by a sixth in width.
  const broken = (line, room) => {
    const fits = (text) => pen.measureText(text).width <= room;
    const lines = [""];
    for (const word of line.split(" ")) {
      const longer = lines[lines.length - 1] ? `${lines[lines.length - 1]} ${word}` : word;
      if (fits(longer)) lines[lines.length - 1] = longer;
      else if (lines[lines.length - 1]) lines.push(word);
      else lines[0] = word;
    }
    return lines.map((text) => {
      if (fits(text)) return text;
      let end = text.length;
      while (end > 1 && !fits(`${text.slice(0, end)}…`)) end -= 1;
      return `${text.slice(0, end)}…`;
    });
  };

  // Rows with their words at the left and their numbers at the right: both go above the row.
  const stackRows = (unit, room, paper) => {
    const parts = unit.layer;
    const behind = [];
    const tall = parts.some((part) => isText(part) && at(part) < 0 && part.mark.dy > 0);
    const lift = tall ? 22 : 15;
    for (const part of parts) {
      const place = at(part);
      if (!isText(part) || place === undefined || (place >= 0 && place <= unit.width)) continue;
      const left = place < 0;
      part.encoding.x = { value: left ? 0 : room };
      part.mark = { ...part.mark, align: left ? "left" : "right", dy: (part.mark.dy || 0) - (tall && !left ? 27 : lift) };
      if (left) part.mark.limit = room - 140;
      // Lines of the plot run behind the words: a rim of paper keeps them apart.
      const { color: ink, ...encoding } = part.encoding;
      const { color: own, ...plain } = part.mark;
      const rim = { fill: paper, stroke: paper, strokeWidth: 4, strokeJoin: "round" };
      behind.push({ ...part, mark: { ...plain, ...rim }, encoding });
    }
    const first = parts.findIndex((part) => isText(part) && at(part) === 0);
    const layer = [...parts.slice(0, first), ...behind, ...parts.slice(first)];
    return { ...unit, layer, width: room, height: { step: tall ? 64 : 44 } };
  };

  const squeeze = (unit, room, paper) => {
    if (typeof unit.width !== "number") return unit;
    const parts = unit.layer || [];
    if (parts.some((part) => isText(part) && at(part) < 0)) return stackRows(unit, room, paper);
    const named = parts.some((part) => isText(part) && part.mark.align === "left" && part.mark.dx);
    const width = room - AXIS - (named ? NAMES : 0);
    for (const part of parts) if (at(part) === unit.width) part.encoding.x = { value: width };
    return { ...unit, width };
  };

  // A phone's width isn't enough for a chart made for a page: it is laid out anew, not shrunk.
  const fitted = (spec, room) => {
    const look = { ...spec.config.title, ...spec.title };
    pen.font = `${look.fontWeight} ${look.fontSize}px ${spec.config.font}`;
    const said = spec.usermeta?.subtitle || [spec.title.text].flat();
    const title = { ...spec.title, text: said.flatMap((line) => broken(line, room)) };
    const fit = (unit) => squeeze(unit, room, spec.config.background);
    return spec.vconcat ? { ...spec, title, vconcat: spec.vconcat.map(fit) } : { ...fit(spec), title };
  };

  const load = async (place) => {
    const note = place.querySelector("[data-fallback]");
    try {
      const answer = await fetch(place.dataset.src, { credentials: "same-origin" });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const holder = document.createElement("script");
      holder.type = "application/json";
      holder.id = place.dataset.chart;
      const text = await answer.text();
      const narrow = window.matchMedia(NARROW).matches;
      const room = note ? note.clientWidth - 12 : 320;
      holder.textContent = narrow ? JSON.stringify(fitted(JSON.parse(text), room)) : text;
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
