// What tells the keys of a row apart, as sightline/lens/shares.py defines it: of the variance of |q| |k| cos θ · scale, before soft-cap and
// bias, the part that is direction and the part that is length. Each row's mean key is taken off first, since no weight depends on it;
// but not where all keys have one length, as in cosine attention. Nothing in this file touches the document.

"use strict";

function sharesOf(head, row) {
  const seen = [];
  for (let column = 0; column < head.keys; column++) if (head.score(row, column) > -Infinity) seen.push(column);
  const middle = onSphere(head) ? new Float64Array(head.dim) : meanKey(head, seen), offset = along(head.query, row, middle);
  const length = seen.map((column) => Math.sqrt(Math.max(0, distance(head.key, column, middle))));
  const force = head.queryLength[row] * head.scale;
  const cosine = seen.map((column, n) => {
    const whole = head.queryLength[row] * length[n];
    return whole > 0 ? between(-1, (head.product(row, column) - offset) / whole, 1) : 0;
  });
  const whole = force ** 2 * variance(length.map((one, n) => one * cosine[n]));
  const byDirection = (force * mean(length)) ** 2 * variance(cosine), byLength = (force * mean(cosine)) ** 2 * variance(length);
  return { variance: whole, direction: (byDirection + whole - byLength) / 2, length: (byLength + whole - byDirection) / 2 };
}

function onSphere(head) {
  let least = Infinity, most = 0;
  for (const length of head.keyLength) (least = Math.min(least, length)), (most = Math.max(most, length));
  return most - least <= 1e-4 * most;
}

function meanKey(head, columns) {
  const { key, dim } = head, found = new Float64Array(dim);
  for (const column of columns) for (let i = 0; i < dim; i++) found[i] += key[column * dim + i] / columns.length;
  return found;
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
