// Attention, rebuilt from q and k as sightline/lens/look.py does it:
//
//     score(i, j)  = cap(q_i · k_j · scale) + bias(i, j)        −∞ where i may not look at j
//     weight(i, j) = exp(score(i, j)) / Σ_j exp(score(i, j))     plus exp(sink) in the sum where the head has a sink
//
// Nothing in this file touches the document.

"use strict";

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let n = 0; n < text.length; n++) bytes[n] = text.charCodeAt(n);
  return bytes;
}

/** One layer as page_data.look_out wrote it; `read(n)` gives the bytes of array n. */
class Look {
  constructor(said, read) {
    this.said = said;
    this.read = read;
    this.queryAt = placesOf(said.queryAt, said.queries);
    this.keyAt = placesOf(said.keyAt, said.keys);
    this.arrays = new Map();
    this.heads = new Map();
  }

  head(number) {
    if (!this.heads.has(number)) {
      if (this.heads.size >= 4) this.heads.delete(this.heads.keys().next().value);
      this.heads.set(number, new Head(this, number));
    }
    return this.heads.get(number);
  }

  array(number, type) {
    if (!this.arrays.has(number)) this.arrays.set(number, new type(this.read(number).buffer));
    return this.arrays.get(number);
  }

  /** The vectors of one head, `time × dim`. */
  vectors(where, head, time) {
    const dim = this.said.dim, start = head * time * dim;
    if (this.said.form === "float32") return this.array(where, Float32Array).subarray(start, start + time * dim);
    const whole = this.array(where[0], Int16Array), steps = this.array(where[1], Float32Array);
    const found = new Float32Array(time * dim);
    for (let n = 0; n < time; n++) {
      const step = steps[head * time + n];
      for (let i = n * dim; i < (n + 1) * dim; i++) found[i] = whole[start + i] * step;
    }
    return found;
  }
}

function placesOf(said, count) {
  return Int32Array.from({ length: count }, (_, n) => (typeof said === "number" ? said + n : said[n]));
}

/** One head: its rows are made when they are asked for; the last ones are kept. */
class Head {
  constructor(look, number) {
    const said = look.said;
    this.look = look;
    this.number = number;
    this.said = said;
    this.dim = said.dim;
    this.queries = said.queries;
    this.keys = said.keys;
    this.query = look.vectors(said.query, number, said.queries);
    this.key = look.vectors(said.key, Math.floor((number * said.kvHeads) / said.heads), said.keys);
    this.queryLength = lengths(this.query, said.queries, said.dim);
    this.keyLength = lengths(this.key, said.keys, said.dim);
    this.sink = said.sinks === null ? -Infinity : said.sinks[number];
    this.bias = biasOf(look, number);
    this.scale = said.scale;
    this.cap = said.softcap;
    this.open = typeof said.keyAt === "number" && said.queryIn === null; // `reach` says it all
    this.kept = new Map();
    this.most = Math.max(64, Math.floor((8 << 20) / Math.max(1, said.keys)));
  }

  allowed(row, column) {
    const { causal, window, queryIn, keyIn } = this.said;
    const at = this.look.queryAt[row], to = this.look.keyAt[column];
    if (to < 0 || (causal && to > at)) return false;
    if (window !== null && Math.abs(at - to) >= window) return false;
    return queryIn === null || keyIn === null || queryIn[row] === keyIn[column];
  }

  product(row, column) {
    const { query, key, dim } = this, end = row * dim + dim, even = end - (dim % 4);
    let a = row * dim, b = column * dim, one = 0, two = 0, three = 0, four = 0;
    for (; a < even; a += 4, b += 4) {
      one += query[a] * key[b];
      two += query[a + 1] * key[b + 1];
      three += query[a + 2] * key[b + 2];
      four += query[a + 3] * key[b + 3];
    }
    for (; a < end; a++, b++) one += query[a] * key[b];
    return one + two + three + four;
  }

  /** The columns outside of which a row may not look, as far as that is known without asking each. */
  reach(row) {
    const { causal, window, keyAt, keys } = this.said, at = this.look.queryAt[row] - keyAt;
    if (typeof keyAt !== "number") return [0, keys];
    const first = window === null ? 0 : Math.max(0, at - window + 1), last = causal ? at + 1 : window === null ? keys : at + window;
    return [Math.min(first, keys), Math.max(0, Math.min(last, keys))];
  }

  /** q·k, scaled, soft-capped, plus bias. */
  finished(row, column, product) {
    const score = this.cap === null ? product * this.scale : this.cap * Math.tanh((product * this.scale) / this.cap);
    return this.bias === null ? score : score + this.bias(row, column);
  }

  score(row, column) {
    return this.allowed(row, column) ? this.finished(row, column, this.product(row, column)) : -Infinity;
  }

  scores(row) {
    const found = new Float32Array(this.keys).fill(-Infinity), [first, last] = this.reach(row);
    for (let column = first; column < last; column++)
      if (this.open || this.allowed(row, column)) found[column] = this.finished(row, column, this.product(row, column));
    return found;
  }

  weights(row) {
    let found = this.kept.get(row);
    if (found === undefined) {
      found = softmax(this.scores(row), this.sink);
      if (this.kept.size >= this.most) this.kept.delete(this.kept.keys().next().value);
      this.kept.set(row, found);
    }
    return found;
  }

  /** The angle between q and k, as its cosine. */
  cosine(row, column) {
    const length = this.queryLength[row] * this.keyLength[column];
    return length > 0 ? this.product(row, column) / length : 0;
  }

  /** The `count` keys with the largest weights. */
  top(row, count) {
    const weights = this.weights(row), found = [];
    for (let column = 0; column < weights.length; column++) {
      if (weights[column] <= 0 || (found.length === count && weights[column] <= weights[found[count - 1]])) continue;
      let place = found.length;
      while (place > 0 && weights[found[place - 1]] < weights[column]) place--;
      found.splice(place, 0, column);
      if (found.length > count) found.pop();
    }
    return found;
  }
}

function lengths(vectors, count, dim) {
  const found = new Float32Array(count);
  for (let n = 0; n < count; n++) {
    let sum = 0;
    for (let i = n * dim; i < (n + 1) * dim; i++) sum += vectors[i] * vectors[i];
    found[n] = Math.sqrt(sum);
  }
  return found;
}

function biasOf(look, head) {
  const bias = look.said.bias, at = look.queryAt, to = look.keyAt;
  if (bias === null) return null;
  if (bias.kind === "alibi") return (row, column) => -bias.slopes[head] * Math.abs(at[row] - to[column]);
  const values = look.array(bias.values, Float32Array);
  if (bias.kind === "distance") {
    const most = bias.most, start = head * (2 * most + 1) + most;
    return (row, column) => values[start + Math.max(-most, Math.min(most, to[column] - at[row]))];
  }
  const start = bias.heads === 1 ? 0 : head * look.said.queries * look.said.keys;
  return (row, column) => values[start + row * look.said.keys + column];
}

/** In place; a row that may look nowhere is all zeros. */
function softmax(scores, sink = -Infinity) {
  const count = scores.length;
  let largest = sink, sum = 0;
  for (let n = 0; n < count; n++) if (scores[n] > largest) largest = scores[n];
  if (largest === -Infinity) return scores.fill(0);
  for (let n = 0; n < count; n++) sum += scores[n] = scores[n] === -Infinity ? 0 : Math.exp(scores[n] - largest);
  const part = 1 / (sum + Math.exp(sink - largest));
  for (let n = 0; n < count; n++) scores[n] *= part;
  return scores;
}
