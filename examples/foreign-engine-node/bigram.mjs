// A bigram model of the request's own text: the next token is one that followed the last token before. It has learned
// nothing, knows no language, and says so in ModelInfo.architecture.
import { createHash } from "node:crypto";

// The noise of a token is a function of (seed, position) only, so that another rank goes on with the same one.
function noise(seed, position) {
  return createHash("sha256").update(`${seed}:${position}`).digest().readUInt32BE() / 2 ** 32;
}

// Followers of the last token with their probabilities, the most likely first. Where nothing followed, the prompt is
// said again from its start.
function followers(context, promptLength, forbidden) {
  const last = context.at(-1);
  const counts = new Map();
  for (let i = 1; i < context.length; i++) {
    if (context[i - 1] === last && !forbidden.has(context[i])) counts.set(context[i], (counts.get(context[i]) ?? 0) + 1);
  }
  if (counts.size === 0) {
    const again = context.slice(0, promptLength).filter((id) => !forbidden.has(id));
    let other = 0;
    while (forbidden.has(other)) other++;
    counts.set(again.length ? again[(context.length - promptLength) % again.length] : other, 1);
  }
  const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
  return [...counts].map(([id, count]) => ({ id, p: count / total })).sort((a, b) => b.p - a.p || a.id - b.id);
}

export function nextToken(context, promptLength, { temperature = 1, topK = 0, topP = 1, minP = 0, seed }, forbidden) {
  let ranked = followers(context, promptLength, forbidden);
  if (temperature === 0) return ranked[0].id;
  ranked = ranked.slice(0, topK || undefined).map(({ id, p }) => ({ id, p: (p / ranked[0].p) ** (1 / temperature) }));
  const sum = (list) => list.reduce((total, { p }) => total + p, 0);
  const bound = topP * sum(ranked);
  let before = 0;
  ranked = ranked.filter(({ p }, i) => (i === 0 || before < bound) && p >= minP && ((before += p), true));
  let left = noise(seed, context.length - promptLength) * sum(ranked);
  return (ranked.find(({ p }) => (left -= p) < 0) ?? ranked.at(-1)).id;
}
