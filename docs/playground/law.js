"use strict";
/* Reads a law as the scheme pages write it, such as "s = r |A|, r' = <θ,A> / |A|", without eval: a law may come from a
   link. s divides the tangential part of the attention output A, r' is the growth of the token's length. */

const CONSTANTS = { "π": Math.PI, pi: Math.PI };
const FUNCTIONS = {
  min: Math.min, max: Math.max, sqrt: Math.sqrt, exp: Math.exp, log: Math.log, sin: Math.sin, cos: Math.cos,
};
const QUANTITIES = {  // what a law may use: r length, t depth + 1, L blocks, A attention output, v its tangential part
  r: q => q.r, t: q => q.t, L: q => q.L, "|A|": q => q.a, "<θ,A>": q => q.c, "|v|": q => q.v,
};
const TOKEN = /\s*(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+|\|A\||\|v\||<θ,A>|[A-Za-zπ]+|[-+*/^(),])/y;

function tokens(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  while (text.slice(TOKEN.lastIndex).trim()) {
    const start = TOKEN.lastIndex, match = TOKEN.exec(text);
    if (!match) throw new Error(`“${text.slice(start).trim()}” is not understood`);
    found.push(match[1]);
  }
  return found;
}

/* An expression as a function of {r, t, L, a, c, v}. Factors may stand side by side: 2 r |A|. */
function expression(text) {
  const list = tokens(text);
  let at = 0;
  const take = symbol => list[at] === symbol && ++at > 0;
  const need = symbol => { if (!take(symbol)) throw new Error(`${symbol} is missing`); };

  function sum() {
    let left = product();
    for (;;) {
      const a = left;
      if (take("+")) { const b = product(); left = q => a(q) + b(q); }
      else if (take("-")) { const b = product(); left = q => a(q) - b(q); }
      else return left;
    }
  }
  function product() {
    let left = signed();
    for (;;) {
      const a = left;
      if (take("/")) { const b = signed(); left = q => a(q) / b(q); }
      else if (take("*") || starts()) { const b = signed(); left = q => a(q) * b(q); }
      else return left;
    }
  }
  const starts = () => at < list.length && !/^[-+*/^),]$/.test(list[at]);
  function signed() {
    if (!take("-")) return power();
    const a = signed();
    return q => -a(q);
  }
  function power() {
    const a = atom();
    if (!take("^")) return a;
    const b = signed();
    return q => a(q) ** b(q);
  }
  function atom() {
    const name = list[at++];
    if (name === undefined) throw new Error("the expression ends too early");
    if (name === "(") { const inner = sum(); need(")"); return inner; }
    if (/^[\d.]/.test(name)) { const number = Number(name); return () => number; }
    if (Object.hasOwn(CONSTANTS, name)) return () => CONSTANTS[name];
    if (Object.hasOwn(QUANTITIES, name)) return QUANTITIES[name];
    if (!Object.hasOwn(FUNCTIONS, name)) throw new Error(`${name} is not known`);
    need("(");
    const inputs = [sum()];
    while (take(",")) inputs.push(sum());
    need(")");
    return q => FUNCTIONS[name](...inputs.map(input => input(q)));
  }

  const whole = sum();
  if (at < list.length) throw new Error(`${list[at]} is one too many`);
  return whole;
}

/* "s = ..., r' = ..." as {speed, growth, read}; r' is 0 where it is left out. read: [k, p, q], see laws.py. */
function law(text, read = [1, 0, 0]) {
  if (text.length > 500) throw new Error("it is longer than 500 characters");
  const plain = text.replaceAll("’", "'").replace(/<\s*(?:θ|theta)\s*,\s*A\s*>/g, "<θ,A>");
  const match = /^\s*s\s*=\s*(.+?)\s*(?:,\s*r'\s*=\s*(.+))?$/.exec(plain);
  if (!match) throw new Error("a law begins with s =");
  return { speed: expression(match[1]), growth: expression(match[2] || "0"), read };
}
