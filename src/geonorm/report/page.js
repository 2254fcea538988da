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

  // Spheres: marks follow the frames between which the slider stands, seen from where the reader has turned them to.
  for (const globe of document.querySelectorAll(".spheres")) {
    const { times, size, reach } = globe.dataset;
    const depth = JSON.parse(times), slider = globe.querySelector("input"), time = globe.querySelector("output");
    let yaw = 0, tilt = 35 * Math.PI / 180, drag = null;
    const figures = [...globe.querySelectorAll("figure")].map(figure => ({
      cosine: figure.querySelector("span"),
      marks: [...figure.querySelectorAll("[data-tip]")],
      frames: JSON.parse(figure.dataset.frames).map(([cos, text]) => [
        cos, new Int16Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer)
      ])
    }));

    function draw() {
      const here = Number(slider.value), first = Math.floor(here), share = here - first;
      const mix = (a, b) => a + (b - a) * share;
      const t = Math.exp(mix(Math.log(depth[first]), Math.log(depth[Math.min(first + 1, depth.length - 1)])));
      time.textContent = t < 10 ? t.toFixed(2) : t < 1e5 ? t.toPrecision(4).replace(/\.0*$/, "") : t.toExponential(2);
      slider.setAttribute("aria-valuetext", time.textContent);
      const [cy, sy, ct, st] = [Math.cos(yaw), Math.sin(yaw), Math.cos(tilt), Math.sin(tilt)];
      for (const { cosine, marks, frames } of figures) {
        const last = frames.length - 1;
        const [a, p] = frames[Math.min(first, last)], [b, q] = frames[Math.min(first + 1, last)];
        cosine.textContent = ` cos ${mix(a, b).toFixed(3)}`;
        marks.forEach((mark, i) => {
          const [common, x, y] = [0, 1, 2].map(axis => mix(p[3 * i + axis], q[3 * i + axis]) / 32767);
          const right = x * cy - y * sy, back = x * sy + y * cy;
          const up = back * ct + common * st, near = common * ct - back * st;
          const [left, down] = [(+reach + right) * size / reach / 2, (reach - up) * size / reach / 2];
          mark.setAttribute("transform", `translate(${left.toFixed(2)},${down.toFixed(2)})`);
          mark.setAttribute("opacity", (0.25 + 0.325 * (1 + near)).toFixed(3));
        });
      }
    }

    slider.addEventListener("input", draw);
    for (const chart of globe.querySelectorAll("svg")) {
      chart.addEventListener("pointerdown", event => {
        drag = [event.clientX, event.clientY];
        chart.setPointerCapture(event.pointerId);
      });
      chart.addEventListener("pointermove", event => {
        if (!drag) return;
        yaw += (event.clientX - drag[0]) / 90;
        tilt = Math.max(-Math.PI / 2, Math.min(Math.PI / 2, tilt + (event.clientY - drag[1]) / 90));
        drag = [event.clientX, event.clientY];
        draw();
      });
      for (const end of ["pointerup", "pointercancel"]) chart.addEventListener(end, () => { drag = null; });
    }
    draw();
  }

  // A table that is wider than its place says so.
  const flag = () => {
    for (const part of document.querySelectorAll(".scroll")) {
      part.parentElement.classList.toggle("cut", part.scrollWidth > part.clientWidth + 1);
    }
  };
  new ResizeObserver(flag).observe(document.body);
  document.addEventListener("change", flag);

  // The picture as it stands, without its marks' labels for the page.
  for (const button of document.querySelectorAll("[data-svg]")) {
    button.addEventListener("click", () => {
      const picture = button.closest(".view").querySelector("svg").cloneNode(true), link = document.createElement("a");
      picture.setAttribute("style", "background: #fff");
      const text = new XMLSerializer().serializeToString(picture);
      link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
      link.download = `${button.dataset.svg}.svg`;
      link.click();
      URL.revokeObjectURL(link.href);
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
