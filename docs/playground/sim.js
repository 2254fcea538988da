"use strict";
/* Particles in three dimensions under a law: attention among the directions proposes A, with Q = K = I and a value matrix V;
   the law moves each token. State: n tokens as a Float64Array of 3 n numbers, their positions x = r θ. */

const D = 3;

function directions(x, n) {
  const theta = new Float64Array(x.length), radius = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    const o = D * i;
    radius[i] = Math.hypot(x[o], x[o + 1], x[o + 2]);
    for (let k = 0; k < D; k++) theta[o + k] = x[o + k] / radius[i];
  }
  return { theta, radius };
}

const scaleBy = (theta, length) => theta.map((each, i) => each * length[Math.floor(i / D)]);

/* The attention output of every token: softmax(beta <y_i, y_j>) over the tokens that i sees, times V y_j. */
function attention(y, n, { beta, causal, values }) {
  const output = new Float64Array(y.length), weight = new Float64Array(n);
  let seen = y;
  if (values) {
    seen = new Float64Array(y.length);
    for (let i = 0; i < n; i++)
      for (let k = 0; k < D; k++)
        for (let m = 0; m < D; m++) seen[D * i + k] += values[D * k + m] * y[D * i + m];
  }
  for (let i = 0; i < n; i++) {
    const o = D * i, last = causal ? i + 1 : n;
    let top = -Infinity, total = 0;
    for (let j = 0; j < last; j++) {
      const p = D * j;
      weight[j] = beta * (y[o] * y[p] + y[o + 1] * y[p + 1] + y[o + 2] * y[p + 2]);
      if (weight[j] > top) top = weight[j];
    }
    for (let j = 0; j < last; j++) total += weight[j] = Math.exp(weight[j] - top);
    for (let j = 0; j < last; j++)
      for (let k = 0; k < D; k++) output[o + k] += weight[j] / total * seen[D * j + k];
  }
  return output;
}

/* dx/dτ at depth τ; t = τ + 1. Attention reads each token at the length k r^p t^q. */
function velocity(x, n, tau, rule, options) {
  const { theta, radius } = directions(x, n), [k, p, q] = rule.read;
  const A = attention(scaleBy(theta, radius.map(r => k * r ** p * (tau + 1) ** q)), n, options), move = new Float64Array(x.length);
  for (let i = 0; i < n; i++) {
    const o = D * i;
    let c = 0, a = 0, v = 0;
    for (let m = 0; m < D; m++) { c += theta[o + m] * A[o + m]; a += A[o + m] ** 2; }
    for (let m = 0; m < D; m++) v += (A[o + m] - c * theta[o + m]) ** 2;
    const q = { r: radius[i], t: tau + 1, L: options.depth, a: Math.sqrt(a), c, v: Math.sqrt(v) };
    const turn = radius[i] / rule.speed(q), growth = rule.growth(q);
    for (let m = 0; m < D; m++) move[o + m] = growth * theta[o + m] + turn * (A[o + m] - c * theta[o + m]);
  }
  return move;
}

/* One step of the classical Runge-Kutta method. */
function step(x, n, tau, h, rule, options) {
  const ahead = (v, by) => x.map((each, i) => each + by * v[i]);
  const a = velocity(x, n, tau, rule, options);
  const b = velocity(ahead(a, h / 2), n, tau + h / 2, rule, options);
  const c = velocity(ahead(b, h / 2), n, tau + h / 2, rule, options);
  const d = velocity(ahead(c, h), n, tau + h, rule, options);
  return x.map((each, i) => each + h / 6 * (a[i] + 2 * b[i] + 2 * c[i] + d[i]));
}

/* From depth `from` to `to` in equal steps of at most `most`. */
function advance(x, n, from, to, rule, options, most = 0.05) {
  const count = Math.max(1, Math.ceil((to - from) / most)), h = (to - from) / count;
  for (let i = 0; i < count; i++) x = step(x, n, from + i * h, h, rule, options);
  return x;
}

function meanCosine(theta, n) {
  const sum = [0, 0, 0];
  for (let i = 0; i < n; i++) for (let k = 0; k < D; k++) sum[k] += theta[D * i + k];
  return (sum.reduce((all, each) => all + each ** 2, 0) - n) / (n * (n - 1));
}

/* Where one whole step puts a token x when the sub-layer says u, in the plane of both: [along x, across]. */
const STEPS = {
  pre: (x, u) => [x[0] + u[0], x[1] + u[1]],
  post: (x, u) => scaled(STEPS.pre(x, u), Math.hypot(...x)),
  peri: (x, u) => STEPS.pre(x, scaled(u, 1)),
  geonorm: (x, u) => {
    const r = Math.hypot(...x), c = (x[0] * u[0] + x[1] * u[1]) / r ** 2, v = [u[0] - c * x[0], u[1] - c * x[1]];
    const size = Math.hypot(...v), angle = Math.min(size / r, Math.PI / 4);
    if (!size) return [...x];
    return [0, 1].map(k => Math.cos(angle) * x[k] + Math.sin(angle) * r * v[k] / size);
  },
};
const scaled = (v, length) => v.map(each => each * length / (Math.hypot(...v) || 1));
