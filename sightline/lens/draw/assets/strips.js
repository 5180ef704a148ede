// The pixels of a map, in strips of rows. Each is computed when first visible, a few milliseconds at a time, and cached.

"use strict";

const STRIP = 32; // rows of pixels in one strip
const STRIPS = 24 << 20; // pixels of all cached strips
const PATIENCE = 14; // milliseconds of work per frame

class Strips {
  constructor(viewer) {
    this.viewer = viewer;
    this.clear();
  }

  clear() {
    this.cache = new Map();
    this.pixels = 0;
  }

  /** Draws finished strips and computes others; true if there is more to do. */
  draw(context, box, { x, y, cell }) {
    const { rows, columns, ratio } = this.viewer, until = performance.now() + PATIENCE;
    const step = 2 ** Math.max(0, Math.ceil(Math.log2(Math.max(1 / (cell * ratio), columns.length / 16384)) - 0.01));
    const first = Math.floor(y / (step * STRIP)), last = Math.ceil(Math.min(rows.length, y + box.h / cell) / (step * STRIP));
    const seen = upTo(first, last).map((n) => this.strip(step, n));
    for (const rough of [true, false]) for (const strip of seen) if (rough ? strip.rough : !strip.done) this.work(strip, until);
    for (const strip of seen) {
      const made = strip.rough ? Math.ceil((strip.row - strip.start) / step) : strip.canvas.height, side = step * cell;
      if (made === 0) continue;
      const top = box.top + (strip.start - y) * cell;
      context.clearRect(box.left, top, box.w, made * side);
      context.drawImage(strip.canvas, 0, 0, strip.canvas.width, made, box.left - x * cell, top, strip.canvas.width * side, made * side);
    }
    return seen.some((strip) => !strip.done);
  }

  /** The strip n at a scale of `step` × `step` tokens per pixel. */
  strip(step, n) {
    const { state } = this.viewer, name = [state.attention, state.layer, state.head, step, n].join("/");
    const strip = this.cache.get(name) ?? this.empty(step, n * step * STRIP);
    this.cache.delete(name);
    this.cache.set(name, strip); // at the end: most recently used
    for (const [old, other] of this.cache) {
      if (this.pixels <= STRIPS || other === strip) break;
      this.pixels -= other.canvas.width * other.canvas.height;
      this.cache.delete(old);
    }
    return strip;
  }

  empty(step, start) {
    const { rows, columns } = this.viewer, end = Math.min(rows.length, start + step * STRIP);
    const canvas = element("canvas", { width: Math.ceil(columns.length / step), height: Math.ceil((end - start) / step) });
    this.pixels += canvas.width * canvas.height;
    return { step, start, end, row: start, canvas, context: canvas.getContext("2d"), rough: true, done: false };
  }

  /** Computes rows of a strip until time is up: first a rough pass, one row of tokens per row of pixels, then all of them. */
  work(strip, until) {
    const { step, canvas, context } = strip;
    while (strip.row < strip.end && performance.now() < until) {
      const end = Math.min(strip.end, strip.row + step), line = this.line(strip.row, strip.rough ? strip.row + 1 : end, step, canvas.width);
      const image = context.createImageData(canvas.width, 1);
      for (let n = 0; n < line.length; n++) {
        if (line[n] < 0) continue;
        const [r, g, b] = paint.weight(line[n]);
        image.data[4 * n] = r, image.data[4 * n + 1] = g, image.data[4 * n + 2] = b, image.data[4 * n + 3] = 255;
      }
      context.putImageData(image, 0, (strip.row - strip.start) / step);
      strip.row = end;
    }
    if (strip.row < strip.end) return;
    strip.done = !strip.rough || step === 1;
    strip.rough = false;
    if (!strip.done) strip.row = strip.start;
  }

  /** One row of pixels: the maximum weight of each; −1 where masked. */
  line(start, end, step, width) {
    const { head } = this.viewer, line = new Float32Array(width).fill(-1);
    for (let row = start; row < end; row++) {
      const weights = head.weights(row);
      for (let column = 0; column < weights.length; column++) {
        const place = step === 1 ? column : Math.floor(column / step), weight = weights[column];
        if (weight > line[place] && (weight > 0 || head.allowed(row, column))) line[place] = weight;
      }
    }
    return line;
  }
}
