"use strict";
(() => {
  const tip = document.getElementById("tip");
  let current = null;

  const marks = chart => [...chart.querySelectorAll("[data-tip]")].filter(mark => !mark.classList.contains("off"));
  const centre = mark => {
    const box = mark.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };

  function show(mark) {
    if (current) current.classList.remove("on");
    current = mark;
    tip.hidden = !mark;
    if (!mark) return;
    mark.classList.add("on");
    tip.textContent = mark.dataset.tip;
    const [x, y] = centre(mark);
    const left = Math.max(6, Math.min(x + 12, innerWidth - tip.offsetWidth - 6));
    const above = y - tip.offsetHeight - 12;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 0 ? above : y + 14}px`;
  }

  function nearest(chart, x, y) {
    let best = null, least = 40;
    for (const mark of marks(chart)) {
      const [mx, my] = centre(mark);
      const distance = Math.hypot(mx - x, my - y);
      if (distance < least) [best, least] = [mark, distance];
    }
    return best;
  }

  // Left and right walk along a scheme's marks, up and down change the scheme.
  function step(chart, key) {
    const all = marks(chart);
    if (!all.length) return;
    const here = all.indexOf(current);
    if (here < 0) return show(all[0]);
    if (key === "ArrowRight") return show(all[Math.min(here + 1, all.length - 1)]);
    if (key === "ArrowLeft") return show(all[Math.max(here - 1, 0)]);
    const schemes = [...new Set(all.map(mark => mark.dataset.s))];
    const next = schemes[schemes.indexOf(current.dataset.s) + (key === "ArrowDown" ? 1 : -1)];
    const [x, y] = centre(current);
    const candidates = all.filter(mark => mark.dataset.s === next);
    const gap = mark => Math.hypot(centre(mark)[0] - x, (centre(mark)[1] - y) / 100);
    if (candidates.length) show(candidates.reduce((a, b) => (gap(b) < gap(a) ? b : a)));
  }

  for (const chart of document.querySelectorAll("svg.chart")) {
    chart.addEventListener("pointermove", event => show(nearest(chart, event.clientX, event.clientY)));
    chart.addEventListener("pointerleave", () => show(null));
    chart.addEventListener("blur", () => show(null));
    chart.addEventListener("keydown", event => {
      if (event.key === "Escape") show(null);
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      step(chart, event.key);
    });
  }

  for (const button of document.querySelectorAll("[data-toggle]")) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      for (const part of document.querySelectorAll(`[data-s="${button.dataset.toggle}"]`)) {
        part.classList.toggle("off", !on);
      }
    });
  }
})();
