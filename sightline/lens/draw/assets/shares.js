// The shares of direction and length in the variance of a row's |q| |k| cos θ · scale, before soft-cap and bias, as defined in
// sightline/lens/geometry/shares.py, from one of two origins: each row's mean key, or zero (by default the mean, or zero where all keys have
// the same length, as in cosine attention); with or without the first key. Nothing in this file touches the document.

"use strict";

function sharesOf(head, row, { origin = null, sink = true } = {}) {
  const visible = [], zero = (origin ?? originOf(head)) === "zero";
  for (let column = sink ? 0 : 1; column < head.keys; column++) if (head.score(row, column) > -Infinity) visible.push(column);
  const middle = zero ? new Float64Array(head.dim) : meanKey(head, visible), offset = along(head.query, row, middle);
  const length = visible.map((column) => Math.sqrt(Math.max(0, distance(head.key, column, middle))));
  const queryScale = head.queryLength[row] * head.scale;
  const cosine = visible.map((column, n) => {
    const whole = head.queryLength[row] * length[n];
    return whole > 0 ? between(-1, (head.product(row, column) - offset) / whole, 1) : 0;
  });
  const whole = queryScale ** 2 * variance(length.map((one, n) => one * cosine[n]));
  const byDirection = (queryScale * mean(length)) ** 2 * variance(cosine), byLength = (queryScale * mean(cosine)) ** 2 * variance(length);
  return { variance: whole, direction: (byDirection + whole - byLength) / 2, length: (byLength + whole - byDirection) / 2 };
}

function originOf(head) {
  return onSphere(head) ? "zero" : "mean";
}

function onSphere(head) {
  let least = Infinity, most = 0;
  for (const length of head.keyLength) (least = Math.min(least, length)), (most = Math.max(most, length));
  return most - least <= 1e-4 * most;
}

function meanKey(head, columns) {
  const { key, dim } = head, result = new Float64Array(dim);
  for (const column of columns) for (let i = 0; i < dim; i++) result[i] += key[column * dim + i] / columns.length;
  return result;
}

function along(vectors, n, direction) {
  let sum = 0;
  for (let i = 0; i < direction.length; i++) sum += vectors[n * direction.length + i] * direction[i];
  return sum;
}

/** |k − middle|² */
function distance(vectors, n, middle) {
  let sum = 0;
  for (let i = 0; i < middle.length; i++) sum += (vectors[n * middle.length + i] - middle[i]) ** 2;
  return sum;
}

function mean(numbers) {
  return numbers.reduce((sum, one) => sum + one, 0) / Math.max(1, numbers.length);
}

function variance(numbers) {
  const middle = mean(numbers);
  return mean(numbers.map((one) => (one - middle) ** 2));
}

const between = (low, value, high) => Math.max(low, Math.min(high, value));
