// Attention, rebuilt from q and k as sightline/lens/trace/layer.py does:
//
//     score(i, j)  = cap(q_i · k_j · scale) + bias(i, j)        −∞ where masked
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

/** One layer as page_data.layer_json writes it; `read(n)` returns the bytes of array n. */
class Look {
  constructor(data, read) {
    this.data = data;
    this.read = read;
    this.queryAt = positionsOf(data.queryAt, data.queries);
    this.keyAt = positionsOf(data.keyAt, data.keys);
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
    const dim = this.data.dim, start = head * time * dim;
    if (this.data.form === "float32") return this.array(where, Float32Array).subarray(start, start + time * dim);
    const whole = this.array(where[0], Int16Array), steps = this.array(where[1], Float32Array);
    const result = new Float32Array(time * dim);
    for (let n = 0; n < time; n++) {
      const step = steps[head * time + n];
      for (let i = n * dim; i < (n + 1) * dim; i++) result[i] = whole[start + i] * step;
    }
    return result;
  }
}

function positionsOf(data, count) {
  return Int32Array.from({ length: count }, (_, n) => (typeof data === "number" ? data + n : data[n]));
}

/** One head: its rows are computed on demand; the most recent are cached. */
class Head {
  constructor(look, number) {
    const data = look.data;
    this.look = look;
    this.number = number;
    this.data = data;
    this.dim = data.dim;
    this.queries = data.queries;
    this.keys = data.keys;
    this.query = look.vectors(data.query, number, data.queries);
    this.key = look.vectors(data.key, Math.floor((number * data.kvHeads) / data.heads), data.keys);
    this.queryLength = lengths(this.query, data.queries, data.dim);
    this.keyLength = lengths(this.key, data.keys, data.dim);
    this.sink = data.sinks === null ? -Infinity : data.sinks[number];
    this.bias = biasOf(look, number);
    this.scale = data.scale;
    this.cap = data.softcap;
    this.open = typeof data.keyAt === "number" && data.queryIn === null; // `reach` alone decides
    this.cache = new Map();
    this.cacheSize = Math.max(64, Math.floor((8 << 20) / Math.max(1, data.keys)));
  }

  allowed(row, column) {
    const { causal, window, queryIn, keyIn } = this.data;
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

  /** The range of columns outside of which a row is masked, as far as known without testing each. */
  reach(row) {
    const { causal, window, keyAt, keys } = this.data, at = this.look.queryAt[row] - keyAt;
    if (typeof keyAt !== "number") return [0, keys];
    const first = window === null ? 0 : Math.max(0, at - window + 1), last = causal ? at + 1 : window === null ? keys : at + window;
    return [Math.min(first, keys), Math.max(0, Math.min(last, keys))];
  }

  /** q·k, scaled, soft-capped, plus bias. */
  finish(row, column, product) {
    const score = this.cap === null ? product * this.scale : this.cap * Math.tanh((product * this.scale) / this.cap);
    return this.bias === null ? score : score + this.bias(row, column);
  }

  score(row, column) {
    return this.allowed(row, column) ? this.finish(row, column, this.product(row, column)) : -Infinity;
  }

  scores(row) {
    const result = new Float32Array(this.keys).fill(-Infinity), [first, last] = this.reach(row);
    for (let column = first; column < last; column++)
      if (this.open || this.allowed(row, column)) result[column] = this.finish(row, column, this.product(row, column));
    return result;
  }

  weights(row) {
    let result = this.cache.get(row);
    if (result === undefined) {
      result = softmax(this.scores(row), this.sink);
      if (this.cache.size >= this.cacheSize) this.cache.delete(this.cache.keys().next().value);
      this.cache.set(row, result);
    }
    return result;
  }

  /** cos of the angle between q and k. */
  cosine(row, column) {
    const length = this.queryLength[row] * this.keyLength[column];
    return length > 0 ? this.product(row, column) / length : 0;
  }

  /** The `count` keys with the largest weights. */
  top(row, count) {
    const weights = this.weights(row), result = [];
    for (let column = 0; column < weights.length; column++) {
      if (weights[column] <= 0 || (result.length === count && weights[column] <= weights[result[count - 1]])) continue;
      let place = result.length;
      while (place > 0 && weights[result[place - 1]] < weights[column]) place--;
      result.splice(place, 0, column);
      if (result.length > count) result.pop();
    }
    return result;
  }
}

function lengths(vectors, count, dim) {
  const result = new Float32Array(count);
  for (let n = 0; n < count; n++) {
    let sum = 0;
    for (let i = n * dim; i < (n + 1) * dim; i++) sum += vectors[i] * vectors[i];
    result[n] = Math.sqrt(sum);
  }
  return result;
}

function biasOf(look, head) {
  const bias = look.data.bias, at = look.queryAt, to = look.keyAt;
  if (bias === null) return null;
  if (bias.kind === "alibi") return (row, column) => -bias.slopes[head] * Math.abs(at[row] - to[column]);
  const values = look.array(bias.values, Float32Array);
  if (bias.kind === "distance") {
    const most = bias.most, start = head * (2 * most + 1) + most;
    return (row, column) => values[start + Math.max(-most, Math.min(most, to[column] - at[row]))];
  }
  const start = bias.heads === 1 ? 0 : head * look.data.queries * look.data.keys;
  return (row, column) => values[start + row * look.data.keys + column];
}

/** In place; a fully masked row is all zeros. */
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
