// A head's keys and queries as points on a sphere, on the same three axes as the figures (views.py):
//
//     axes = first three eigenvectors of  Σ q̂ q̂ᵀ / queries + Σ k̂ k̂ᵀ / keys,    k̂ = (k − mean k) / |k − mean k|
//
// Keys are centred: a vector added to all of them changes no weight. Nothing in this file touches the document.

"use strict";

function spherePoints(head) {
  const { dim, queries, keys } = head;
  const query = units(head.query, queries, dim, false), key = units(head.key, keys, dim, true);
  const moment = new Float64Array(dim * dim);
  addMoment(moment, query, queries, dim);
  addMoment(moment, key, keys, dim);
  const axes = eigenvectors(moment, dim, Math.min(3, dim));
  return { queries: projectPoints(query, queries, dim, axes), keys: projectPoints(key, keys, dim, axes) };
}

/** Unit vectors, with their mean subtracted first if `centred`. */
function units(vectors, count, dim, centred) {
  const middle = new Float64Array(dim), result = new Float32Array(count * dim);
  if (centred) for (let n = 0; n < count * dim; n++) middle[n % dim] += vectors[n] / count;
  for (let n = 0; n < count; n++) {
    let sum = 0;
    for (let i = 0; i < dim; i++) sum += (result[n * dim + i] = vectors[n * dim + i] - middle[i]) ** 2;
    const length = Math.sqrt(sum) || 1;
    for (let i = 0; i < dim; i++) result[n * dim + i] /= length;
  }
  return result;
}

/** Σ x xᵀ / count, over about 1024 of them. */
function addMoment(moment, vectors, count, dim) {
  const step = Math.max(1, Math.floor(count / 1024)), used = Math.ceil(count / step);
  for (let n = 0; n < count; n += step)
    for (let i = 0; i < dim; i++)
      for (let j = 0; j < dim; j++) moment[i * dim + j] += (vectors[n * dim + i] * vectors[n * dim + j]) / used;
}

/** The eigenvectors with the largest eigenvalues, by Jacobi rotations; signs are fixed so that their entries sum to 0 or more. */
function eigenvectors(matrix, dim, count) {
  const left = Float64Array.from(matrix), vectors = new Float64Array(dim * dim);
  for (let n = 0; n < dim; n++) vectors[n * dim + n] = 1;
  for (let sweep = 0; sweep < 50 && offDiagonal(left, dim) > 1e-13; sweep++)
    for (let p = 0; p < dim; p++) for (let q = p + 1; q < dim; q++) annihilate(left, vectors, dim, p, q);
  const order = upTo(0, dim).sort((a, b) => left[b * dim + b] - left[a * dim + a]);
  return order.slice(0, count).map((n) => {
    const axis = vectors.slice(n * dim, (n + 1) * dim), sum = axis.reduce((total, one) => total + one, 0);
    return sum < 0 ? axis.map((one) => -one) : axis;
  });
}

/** The norm of the off-diagonal entries, as a share of the whole. */
function offDiagonal(matrix, dim) {
  let offDiagonalValue = 0, all = 0;
  for (let n = 0; n < dim * dim; n++) {
    all += matrix[n] ** 2;
    if (n % (dim + 1)) offDiagonalValue += matrix[n] ** 2;
  }
  return all > 0 ? Math.sqrt(offDiagonalValue / all) : 0;
}

/** A Jacobi rotation of rows and columns p and q that makes matrix[p, q] 0; the rows of `vectors` are rotated along. */
function annihilate(matrix, vectors, dim, p, q) {
  const offDiagonalValue = matrix[p * dim + q];
  if (offDiagonalValue === 0) return;
  const half = (matrix[q * dim + q] - matrix[p * dim + p]) / (2 * offDiagonalValue);
  const tangent = (half < 0 ? -1 : 1) / (Math.abs(half) + Math.sqrt(half * half + 1));
  const cosine = 1 / Math.sqrt(tangent * tangent + 1), sine = tangent * cosine;
  const turn = (numbers, a, b) => {
    const first = numbers[a], second = numbers[b];
    numbers[a] = cosine * first - sine * second;
    numbers[b] = sine * first + cosine * second;
  };
  for (let n = 0; n < dim; n++) turn(matrix, n * dim + p, n * dim + q);
  for (let n = 0; n < dim; n++) turn(matrix, p * dim + n, q * dim + n), turn(vectors, p * dim + n, q * dim + n);
}

function dot(a, b) {
  let sum = 0;
  for (let n = 0; n < a.length; n++) sum += a[n] * b[n];
  return sum;
}

/** Points on the sphere, each with the norm of its projection on the axes (1: all of it). */
function projectPoints(vectors, count, dim, axes) {
  const result = new Float32Array(count * 4);
  for (let n = 0; n < count; n++) {
    const at = axes.map((axis) => dot(axis, vectors.subarray(n * dim, (n + 1) * dim)));
    while (at.length < 3) at.push(0);
    const length = Math.hypot(...at);
    for (let i = 0; i < 3; i++) result[4 * n + i] = length > 0 ? at[i] / length : 0;
    result[4 * n + 3] = length;
  }
  return result;
}
