// The sphere view: keys are stars, queries are rings, attention is lines between them. Drag rotates it.

"use strict";

class SphereView {
  constructor(viewer) {
    this.viewer = viewer;
    this.turn = this.tilt = 0; // as in the figures: x to the right, y up
    this.cache = new Map();
  }

  points() {
    const { state, head } = this.viewer, name = [state.attention, state.layer, state.head].join("/");
    if (!this.cache.has(name)) {
      if (this.cache.size > 8) this.cache.clear();
      this.cache.set(name, spherePoints(head));
    }
    return this.cache.get(name);
  }

  /** Where point n is on the screen, and how near it is (−1 … 1). */
  place(points, n) {
    const [x, y, z] = points.subarray(4 * n, 4 * n + 3);
    const a = Math.cos(this.turn) * x + Math.sin(this.turn) * z, c = Math.cos(this.turn) * z - Math.sin(this.turn) * x;
    const b = Math.cos(this.tilt) * y - Math.sin(this.tilt) * c, near = Math.sin(this.tilt) * y + Math.cos(this.tilt) * c;
    const { x: left, y: top, r } = this.box;
    return { x: left + r * a, y: top - r * b, near };
  }

  draw(context) {
    const { viewer } = this, { width, height, head, state } = viewer;
    if (head === null) return viewer.drawAbsence(context);
    this.box = { x: width / 2, y: height / 2, r: Math.min(width, height) / 2 - 46 };
    const points = this.points();
    this.drawGlobe(context);
    const from = upTo(Math.max(0, state.row - 64), Math.min(head.queries, state.row + 65));
    const only = viewer.hover?.row ?? null;
    for (const row of from) if (row !== state.row) this.drawAttention(context, points, row, only === null ? 0.22 : 0.05);
    this.drawStars(context, points);
    this.drawAttention(context, points, only ?? state.row, 1);
    this.drawNames(context, points, only ?? state.row);
    context.fillStyle = paint.colours.soft;
    context.font = font(12);
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    const share = (some) => percent(mean(upTo(0, some.length / 4).map((n) => some[4 * n + 3] ** 2)));
    context.fillText(`✦ keys, centred   ○ queries   — attention`, 14, height - 32);
    context.fillText(`these three axes hold ${share(points.keys)} of the variance of key directions, ${share(points.queries)} of the queries'`, 14, height - 14);
  }

  drawGlobe(context) {
    const { x, y, r } = this.box, glow = context.createRadialGradient(x - r * 0.3, y - r * 0.35, r * 0.1, x, y, r);
    glow.addColorStop(0, paint.colours.panel);
    glow.addColorStop(1, paint.colours.ground);
    context.fillStyle = glow;
    context.strokeStyle = paint.colours.faint;
    context.lineWidth = 1;
    context.beginPath(), context.arc(x, y, r, 0, 7), context.fill(), context.stroke();
    for (const circle of [0, 1, 2]) {
      context.globalAlpha = 0.5;
      context.beginPath();
      for (let n = 0; n <= 64; n++) {
        const angle = (n / 64) * 2 * Math.PI, at = [Math.cos(angle), Math.sin(angle)];
        const { x: left, y: top } = this.place(tilted(circle === 0 ? [at[0], 0, at[1]] : circle === 1 ? [0, at[0], at[1]] : [at[0], at[1], 0]), 0);
        n === 0 ? context.moveTo(left, top) : context.lineTo(left, top);
      }
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  /** The largest weights of one query, as curves inside the sphere. */
  drawAttention(context, points, row, strength) {
    const { head } = this.viewer, weights = head.weights(row), start = this.place(points.queries, row), { x, y } = this.box;
    context.strokeStyle = strength === 1 ? paint.colours.second : paint.colours.accent;
    for (const column of head.top(row, strength === 1 ? 24 : 4)) {
      if (weights[column] < 0.01) continue;
      const end = this.place(points.keys, column);
      context.globalAlpha = Math.sqrt(weights[column]) * strength;
      context.lineWidth = strength === 1 ? 1 + 4 * weights[column] : 1;
      context.beginPath();
      context.moveTo(start.x, start.y);
      context.quadraticCurveTo((start.x + end.x) * 0.35 + x * 0.3, (start.y + end.y) * 0.35 + y * 0.3, end.x, end.y);
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  drawStars(context, points) {
    const { head, state, hover } = this.viewer, longest = Math.max(1e-9, ...sample(head.keyLength));
    for (let n = 0; n < head.keys; n++) {
      const { x, y, near } = this.place(points.keys, n), size = 1.6 + 3.4 * (head.keyLength[n] / longest) + (near > 0 ? 0.6 : 0);
      context.globalAlpha = 0.35 + 0.6 * ((near + 1) / 2);
      context.fillStyle = n === (hover?.column ?? state.column) ? paint.colours.second : paint.colours.third;
      star(context, x, y, head.keys > 2000 ? size * 0.6 : size);
    }
    const step = Math.max(1, Math.ceil(head.queries / 600));
    context.lineWidth = 1.3;
    for (let n = 0; n < head.queries; n += step) {
      const { x, y, near } = this.place(points.queries, n);
      context.globalAlpha = 0.3 + 0.6 * ((near + 1) / 2);
      context.strokeStyle = paint.colours.accent;
      context.beginPath(), context.arc(x, y, 3.6, 0, 7), context.stroke();
    }
    const { x, y } = this.place(points.queries, hover?.row ?? state.row);
    context.globalAlpha = 1;
    context.lineWidth = 2.5;
    context.strokeStyle = paint.colours.second;
    context.beginPath(), context.arc(x, y, 6.5, 0, 7), context.stroke();
  }

  drawNames(context, points, row) {
    const { head, rows, columns, hover } = this.viewer, taken = [];
    const write = (text, at, colour, weight) => {
      context.font = font(13, weight);
      const box = { x: at.x + 9, y: at.y - 8, w: context.measureText(text).width, h: 16 };
      if (taken.some((other) => box.x < other.x + other.w && other.x < box.x + box.w && Math.abs(box.y - other.y) < 15)) return;
      taken.push(box);
      context.lineWidth = 3.5, (context.strokeStyle = paint.colours.ground), context.strokeText(text, box.x, at.y);
      context.fillStyle = colour;
      context.fillText(text, box.x, at.y);
    };
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    write(label(rows[row]), this.place(points.queries, row), paint.colours.second, 700);
    if (hover && hover.column !== null) write(label(columns[hover.column]), this.place(points.keys, hover.column), paint.colours.ink, 600);
    for (const column of head.top(row, 10)) write(`${label(columns[column])} ${percent(head.weights(row)[column])}`, this.place(points.keys, column), paint.colours.ink, 500);
    if (head.keys > 60) return;
    for (let n = 0; n < head.keys; n++) if (this.place(points.keys, n).near > -0.2) write(label(columns[n], 12), this.place(points.keys, n), paint.colours.soft, 400);
  }

  /** The nearest star or ring to the pointer. */
  nearest(x, y) {
    const { head } = this.viewer, points = this.points();
    let best = { far: 14, at: null };
    for (const [points, name, step] of [[points.keys, "column", 1], [points.queries, "row", Math.max(1, Math.ceil(head.queries / 600))]])
      for (let n = 0; n < points.length / 4; n += step) {
        const place = this.place(points, n), far = Math.hypot(place.x - x, place.y - y) - place.near;
        if (far < best.far) best = { far, at: { row: null, column: null, [name]: n } };
      }
    return best.at;
  }

  move(x, y) {
    if (this.viewer.head !== null && this.box) this.viewer.point(this.nearest(x, y));
  }

  drag(dx, dy) {
    this.turn += dx * 0.008;
    this.tilt = between(-1.5, this.tilt + dy * 0.008, 1.5);
  }

  click(x, y) {
    const at = this.nearest(x, y);
    if (at) this.viewer.select(at.row === null ? { column: at.column } : { row: at.row });
  }

  key(event) {
    return this.viewer.stepRow(event);
  }
}

/** A point of the globe's circles, tilted: seen along an axis they would be lines. */
function tilted([x, y, z]) {
  const [cosine, sine] = [Math.cos(0.31), Math.sin(0.31)], depth = sine * y + cosine * z;
  return Float32Array.from([cosine * x + sine * depth, cosine * y - sine * z, cosine * depth - sine * x, 1]);
}

function star(context, x, y, size) {
  context.beginPath();
  for (let n = 0; n < 8; n++) {
    const angle = (n * Math.PI) / 4, far = n % 2 ? size * 0.42 : size * 1.5;
    context.lineTo(x + far * Math.cos(angle), y + far * Math.sin(angle));
  }
  context.fill();
}
