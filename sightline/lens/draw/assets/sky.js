// A head's keys and queries as points on a sphere: their directions, seen along the three axes that hold most of them.
//
//     axes = first three eigenvectors of  Σ q̂ q̂ᵀ / queries + Σ k̂ k̂ᵀ / keys,    k̂ = (k − mean k) / |k − mean k|
//
// Keys are centred: one vector added to all of them changes no weight. Nothing in this file touches the document.

"use strict";

function skyOf(head) {
  const { dim, queries, keys } = head;
  const query = units(head.query, queries, dim, false), key = units(head.key, keys, dim, true);
  const moment = new Float64Array(dim * dim);
  addMoment(moment, query, queries, dim);
  addMoment(moment, key, keys, dim);
  const axes = eigenvectors(moment, dim, Math.min(3, dim));
  return { queries: placed(query, queries, dim, axes), keys: placed(key, keys, dim, axes) };
}

/** Vectors of length 1, after their mean is taken off if asked for. */
function units(vectors, count, dim, centred) {
  const middle = new Float64Array(dim), found = new Float32Array(count * dim);
  if (centred) for (let n = 0; n < count * dim; n++) middle[n % dim] += vectors[n] / count;
  for (let n = 0; n < count; n++) {
    let sum = 0;
    for (let i = 0; i < dim; i++) sum += (found[n * dim + i] = vectors[n * dim + i] - middle[i]) ** 2;
    const length = Math.sqrt(sum) || 1;
    for (let i = 0; i < dim; i++) found[n * dim + i] /= length;
  }
  return found;
}

/** Σ x xᵀ / count, of at most 1024 of them. */
function addMoment(moment, vectors, count, dim) {
  const step = Math.max(1, Math.floor(count / 1024)), used = Math.ceil(count / step);
  for (let n = 0; n < count; n += step)
    for (let i = 0; i < dim; i++)
      for (let j = 0; j < dim; j++) moment[i * dim + j] += (vectors[n * dim + i] * vectors[n * dim + j]) / used;
}

/** By power iteration; each one found is taken out of the next. */
function eigenvectors(matrix, dim, count) {
  const found = [];
  for (let number = 0; number < count; number++) {
    let vector = Float64Array.from({ length: dim }, (_, n) => Math.sin(1 + n * (number + 1.7)));
    for (let turn = 0; turn < 100; turn++) {
      const next = new Float64Array(dim);
      for (let i = 0; i < dim; i++) for (let j = 0; j < dim; j++) next[i] += matrix[i * dim + j] * vector[j];
      for (const other of found) {
        const along = dot(next, other);
        for (let i = 0; i < dim; i++) next[i] -= along * other[i];
      }
      const length = Math.sqrt(dot(next, next));
      if (!(length > 1e-12)) break;
      vector = next.map((one) => one / length);
    }
    found.push(vector);
  }
  return found;
}

function dot(a, b) {
  let sum = 0;
  for (let n = 0; n < a.length; n++) sum += a[n] * b[n];
  return sum;
}

/** On the sphere, with how much of the direction these axes show (1: all of it). */
function placed(vectors, count, dim, axes) {
  const found = new Float32Array(count * 4);
  for (let n = 0; n < count; n++) {
    const at = axes.map((axis) => dot(axis, vectors.subarray(n * dim, (n + 1) * dim)));
    while (at.length < 3) at.push(0);
    const length = Math.hypot(...at);
    for (let i = 0; i < 3; i++) found[4 * n + i] = length > 0 ? at[i] / length : 0;
    found[4 * n + 3] = length;
  }
  return found;
}
