"use strict";
/* The page: settings to simulation to canvas. LAWS = [{name, law, read, light, dark}] comes from laws.js. */

const FRAMES = 120, DEEPEST = 100, TRAIL = 14, COUNT = 48, MOST_RULES = 6;
const at = frame => Math.exp(frame / FRAMES * Math.log(DEEPEST + 1)) - 1;  // even in the logarithm of depth
const find = id => document.getElementById(id);
if (self !== top) {  // the page around it has a heading, and gives it the height that it asks for
  find("title").hidden = find("share").hidden = true;
  new ResizeObserver(() => parent.postMessage(document.documentElement.offsetHeight, "*")).observe(document.body);
}
const night = matchMedia("(prefers-color-scheme: dark)"), calm = matchMedia("(prefers-reduced-motion: reduce)");
const colour = rule => night.matches ? rule.dark : rule.light;
const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name);

let seed = 7, shown = [], yaw = 0.6, pitch = 0.4, timer = 0, pending = 0;

/* Numbers in (0, 1) that follow from the seed (Park and Miller), so that a shared link shows the same tokens. */
function numbers(start) {
  let state = start * 48271 % 2147483647 || 1;
  return () => (state = state * 48271 % 2147483647) / 2147483647;
}

function normal(next) { return Math.sqrt(-2 * Math.log(next())) * Math.cos(2 * Math.PI * next()); }

function start() {
  const next = numbers(seed), x = Float64Array.from({ length: D * COUNT }, () => normal(next));
  return directions(x, COUNT).theta;
}

function settings() {
  const next = numbers(seed + 1000);
  const values = find("random").checked ? Float64Array.from({ length: D * D }, () => normal(next) / Math.sqrt(D)) : null;
  return { beta: Number(find("beta").value), causal: find("causal").checked, values, depth: DEEPEST };
}

function chosen() {
  const rules = [...document.querySelectorAll("#rules input:checked")].map(box => LAWS[box.value]);
  const text = find("own").value.trim();
  find("problem").textContent = "";
  try {
    if (text) rules.push({ name: "your law", law: text, light: "#b9659a", dark: "#e39cc6" });
    return rules.map(rule => ({ ...rule, parsed: law(rule.law, rule.read) }));
  } catch (error) {
    find("problem").textContent = `Your law: ${error.message}.`;
    return rules.slice(0, -1).map(rule => ({ ...rule, parsed: law(rule.law, rule.read) }));
  }
}

function restart() {
  const options = settings(), x = start();
  shown = chosen().map(rule => ({ rule, options, x, frames: [x], canvas: null, text: null }));
  const place = find("spheres");
  place.replaceChildren(...shown.map(sphere => {
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    sphere.canvas = Object.assign(document.createElement("canvas"), { width: 420, height: 420, tabIndex: 0 });
    sphere.canvas.setAttribute("role", "application");
    sphere.text = document.createElement("small");
    const name = document.createElement("b");
    name.textContent = sphere.rule.name;
    name.style.borderLeft = `0.7em solid ${colour(sphere.rule)}`;
    caption.append(name, document.createElement("br"), sphere.text);
    figure.append(sphere.canvas, caption);
    return figure;
  }));
  remember();
  cancelAnimationFrame(pending);
  compute();
}

/* Works for some 12 ms, draws, and goes on in the next frame until every sphere has all its frames. */
function compute() {
  const end = performance.now() + 12;
  let open = shown.filter(sphere => sphere.frames.length <= FRAMES);
  while (open.length && performance.now() < end) {
    const sphere = open.reduce((a, b) => a.frames.length <= b.frames.length ? a : b), k = sphere.frames.length;
    const step = (sphere.options.beta ? 0.05 : 0.0125) * (1 + at(k) / 5);  // uniform attention needs smaller steps
    sphere.x = advance(sphere.x, COUNT, at(k - 1), at(k), sphere.rule.parsed, sphere.options, step);
    sphere.frames.push(directions(sphere.x, COUNT).theta);
    open = shown.filter(each => each.frames.length <= FRAMES);
  }
  draw();
  if (open.length) pending = requestAnimationFrame(compute);
}

function draw() {
  const wanted = Number(find("depth").value);
  find("layer").textContent = `layer ${at(wanted).toFixed(1)}`;
  find("depth").setAttribute("aria-valuetext", find("layer").textContent);
  find("sharp").textContent = find("beta").value;
  for (const { rule, frames, canvas, text } of shown) {
    const last = Math.min(wanted, frames.length - 1), pen = canvas.getContext("2d");
    pen.clearRect(0, 0, 420, 420);
    pen.globalAlpha = 1;
    pen.strokeStyle = ink("--line");
    pen.lineWidth = 3;
    pen.beginPath(); pen.arc(210, 210, 196, 0, 7); pen.stroke();
    pen.fillStyle = colour(rule);
    for (let k = Math.max(0, last - TRAIL); k <= last; k++)
      for (let i = 0; i < COUNT; i++) {
        const [px, py, pz] = frames[k].subarray(D * i, D * i + D);
        const across = px * Math.cos(yaw) - pz * Math.sin(yaw), back = px * Math.sin(yaw) + pz * Math.cos(yaw);
        const up = py * Math.cos(pitch) - back * Math.sin(pitch), near = py * Math.sin(pitch) + back * Math.cos(pitch);
        pen.globalAlpha = (k === last ? 1 : 0.12) * (near > 0 ? 1 : 0.35);
        pen.beginPath(); pen.arc(210 + 196 * across, 210 - 196 * up, k === last ? 6 : 2.5, 0, 7); pen.fill();
      }
    const cosine = meanCosine(frames[last], COUNT);
    text.textContent = Number.isFinite(cosine) ? `mean cosine ${cosine.toFixed(2)}` : "left the sphere";
    canvas.setAttribute("aria-label", `${rule.name}: ${text.textContent}`);
  }
}

function play() {
  clearInterval(timer);
  if (timer) { timer = 0; find("play").textContent = "Play"; return; }
  if (Number(find("depth").value) >= FRAMES) find("depth").value = 0;
  find("play").textContent = "Pause";
  timer = setInterval(() => {
    find("depth").value = Number(find("depth").value) + 1;
    draw();
    if (Number(find("depth").value) >= FRAMES) play();
  }, 60);
}

/* Settings in the address, so that a link shows what its sender saw. */
function remember() {
  const state = new URLSearchParams({
    beta: find("beta").value, depth: find("depth").value, seed, own: find("own").value,
    causal: Number(find("causal").checked), random: Number(find("random").checked),
    rules: [...document.querySelectorAll("#rules input:checked")].map(box => LAWS[box.value].name).join("|"),
  });
  history.replaceState(null, "", `#${state}`);
}

function recall() {
  const state = new URLSearchParams(location.hash.slice(1));
  for (const name of ["beta", "depth", "own"]) if (state.has(name)) find(name).value = state.get(name);
  for (const name of ["causal", "random"]) if (state.has(name)) find(name).checked = state.get(name) === "1";
  seed = Math.abs(Math.trunc(state.get("seed"))) % 2147483647 || seed;
  const names = (state.get("rules") ?? "post|peri|pre|ngpt|geonorm").split("|");
  for (const box of document.querySelectorAll("#rules input")) box.checked = names.includes(LAWS[box.value].name);
}

function limit(event) {
  const boxes = [...document.querySelectorAll("#rules input")], full = boxes.filter(box => box.checked).length >= MOST_RULES;
  for (const box of boxes) box.disabled = full && !box.checked;
  if (event) restart();
}

function turn(across, up) { yaw += across; pitch += up; draw(); }

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function onArrow(move) {
  return event => {
    if (!ARROWS[event.key]) return;
    event.preventDefault();
    move(...ARROWS[event.key]);
  };
}

/* The second toy: x is fixed, u is moved, each rule's result is drawn. */
const token = [1, 0];
let update = [0.5, 0.75];
const LABELS = { pre: ["right", -11, -6], peri: ["left", 11, -6], post: ["left", 11, 16], geonorm: ["right", -11, -6] };

function drawStep() {
  const canvas = find("step"), pen = canvas.getContext("2d"), unit = 150, origin = [230, 250];
  const place = ([a, b]) => [origin[0] + unit * a, origin[1] - unit * b];
  const arrow = (from, to, style, width) => {
    const a = place(from), b = place(to), angle = Math.atan2(b[1] - a[1], b[0] - a[0]);
    pen.strokeStyle = pen.fillStyle = style;
    pen.lineWidth = width;
    pen.beginPath(); pen.moveTo(...a); pen.lineTo(...b); pen.stroke();
    pen.beginPath(); pen.moveTo(...b);
    for (const side of [-0.4, 0.4]) pen.lineTo(b[0] - 11 * Math.cos(angle + side), b[1] - 11 * Math.sin(angle + side));
    pen.fill();
  };
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.font = `${Math.min(24, 15 * 640 / canvas.clientWidth)}px system-ui, sans-serif`;
  pen.textAlign = "left";
  pen.strokeStyle = ink("--line");
  pen.lineWidth = 1;
  pen.beginPath(); pen.arc(...origin, unit, Math.PI, 2 * Math.PI); pen.stroke();
  arrow([0, 0], token, ink("--ink"), 2);
  arrow(token, [token[0] + update[0], token[1] + update[1]], ink("--soft"), 2);
  pen.fillText("x", place(token)[0] - 8, origin[1] + 20);
  pen.fillText("u", place([token[0] + update[0] / 2, 0])[0] + 10, place([0, update[1] / 2])[1]);
  const results = Object.entries(STEPS).map(([name, rule]) => [name, rule(token, update)]);
  for (const [name, result] of results) {
    const known = LAWS.find(each => each.name === name), spot = place(result);
    pen.fillStyle = colour(known);
    pen.beginPath(); pen.arc(...spot, 7, 0, 7); pen.fill();
    const [align, across, down] = LABELS[name];
    pen.textAlign = align;
    pen.fillText(name, spot[0] + across, spot[1] + down);
  }
  const turns = results.map(([name, [a, b]]) =>
    `${name}: ${Math.round(Math.atan2(b, a) * 180 / Math.PI)}°, length ${Math.hypot(a, b).toFixed(2)}`);
  find("lengths").textContent = turns.join(" · ");
}

function moveUpdate(across, down) {
  update = [update[0] + across / 20, update[1] - down / 20];
  drawStep();
}

find("rules").append(...LAWS.map((rule, index) => {
  const label = document.createElement("label"), box = document.createElement("input");
  box.type = "checkbox";
  box.value = index;
  label.append(box, rule.name);
  label.title = rule.law;
  return label;
}));
const shared = location.hash;
recall();
limit();
find("rules").addEventListener("change", limit);
for (const name of ["beta", "causal", "random", "own"]) find(name).addEventListener("change", restart);
find("beta").addEventListener("input", restart);
find("depth").addEventListener("input", draw);
find("depth").addEventListener("change", remember);
find("play").addEventListener("click", play);
find("again").addEventListener("click", () => { seed++; restart(); });
find("controls").addEventListener("submit", event => event.preventDefault());
find("turn").addEventListener("click", () => turn(0.4, 0.1));
find("spheres").addEventListener("pointermove", event => { if (event.buttons) turn(event.movementX / 90, event.movementY / 90); });
find("spheres").addEventListener("keydown", onArrow((across, down) => turn(across / 8, down / 8)));
find("step").addEventListener("keydown", onArrow(moveUpdate));
for (const kind of ["pointerdown", "pointermove"]) find("step").addEventListener(kind, event => {
  if (!event.buttons) return;
  const box = find("step").getBoundingClientRect(), scale = 640 / box.width / 150;
  update = [(event.clientX - box.left) * scale - 230 / 150 - token[0], 250 / 150 - (event.clientY - box.top) * scale];
  drawStep();
});
night.addEventListener("change", () => { restart(); drawStep(); });
const begun = performance.now();
restart();
drawStep();
window.firstFrame = performance.now() - begun;
if (!calm.matches && !shared) { find("depth").value = 0; play(); }
