// Scores as |q| · |k| · cos θ · scale. Left, the keys of one row with their length, angle, score and weight; right, all of them as points,
// and the shares of direction and length in the variance of the scores, from an origin of choice, with or without the first key.

"use strict";

class GeometryView {
  constructor(viewer) {
    this.viewer = viewer;
    this.scroll = 0;
    this.origin = null; // of the lengths in the shares: "mean", "zero", or as the head has it
    this.sink = true; // whether the first key takes part in the shares
    this.sums = new Map();
  }

  layout() {
    const { width, height, columns } = this.viewer, top = 58;
    this.scroll = between(0, this.scroll, Math.max(0, columns.length * PITCH + 16 - (height - top)));
    const left = width > 820 ? width * 0.58 : width;
    const bar = (left - 170) / 4;
    return { top, left, bars: [0, 1, 2, 3].map((n) => 140 + n * bar), bar: bar - 18, chart: width > 820 };
  }

  draw(context) {
    const { viewer } = this, { head, state, columns, rows } = viewer, box = (this.box = this.layout());
    if (head === null) return viewer.drawAbsence(context);
    const weights = head.weights(state.row), scores = head.scores(state.row);
    this.cosines = Float32Array.from(weights, (_, column) => (scores[column] > -Infinity ? head.cosine(state.row, column) : 0));
    const most = { length: Math.max(1e-9, ...sample(head.keyLength)), cosine: Math.max(0.1, ...sample(this.cosines).map(Math.abs)), score: Math.max(1e-9, ...sample(scores).map(Math.abs).filter(Number.isFinite)) };
    const first = Math.max(0, Math.floor(this.scroll / PITCH)), last = Math.min(columns.length, first + Math.ceil((viewer.height - box.top) / PITCH) + 1);
    for (const column of upTo(first, last)) this.drawKey(context, column, weights, scores, most);
    this.drawTitles(context, box, head.queryLength[state.row], rows[state.row]);
    if (box.chart) this.drawChart(context, box, head, weights);
    return this.box.chart && this.gather(head);
  }

  drawTitles(context, box, length, token) {
    context.fillStyle = paint.colours.ground;
    context.fillRect(0, 0, box.left, box.top - 4);
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = paint.colours.ink;
    context.font = font(13, 600);
    context.fillText(`${label(token)}  as query, |q| = ${number(length, 2)}`, 12, 18);
    context.fillStyle = paint.colours.soft;
    context.font = font(12);
    for (const [n, title] of ["|k|  length", "cos θ  direction", "score", "weight"].entries()) context.fillText(title, box.bars[n], 42);
  }

  drawKey(context, column, weights, scores, most) {
    const { viewer, box } = this, { head, state, columns, hover } = viewer, y = box.top + (column + 0.5) * PITCH - this.scroll;
    const allowed = scores[column] > -Infinity, cosine = head.cosine(state.row, column), { accent, second, third, soft, ink } = paint.colours;
    if (hover?.column === column || state.column === column) {
      context.fillStyle = paint.colours.faint;
      context.globalAlpha = 0.5, context.fillRect(0, y - PITCH / 2, box.left - 12, PITCH), (context.globalAlpha = 1);
    }
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.font = font(13, weights[column] > 0.1 ? 600 : 400);
    context.fillStyle = allowed ? ink : soft;
    context.globalAlpha = allowed ? 1 : 0.35;
    context.fillText(label(columns[column], 14), box.bars[0] - 12, y);
    this.bar(context, 0, y, head.keyLength[column] / most.length, third, number(head.keyLength[column], 1));
    this.bar(context, 1, y, cosine / most.cosine, second, number(cosine, 2), true);
    if (allowed) {
      this.bar(context, 2, y, scores[column] / most.score, soft, number(scores[column], 2), true);
      this.bar(context, 3, y, weights[column], accent, percent(weights[column]));
    }
    context.globalAlpha = 1;
  }

  /** `part` of a bar's room, from its left or, with a sign, from its middle. */
  bar(context, n, y, part, colour, text, signed = false) {
    const { bars, bar } = this.box, room = Math.max(10, bar - 46), zero = bars[n] + (signed ? room / 2 : 0);
    const wide = between(-1, part, 1) * (signed ? room / 2 : room);
    context.fillStyle = colour;
    context.fillRect(Math.min(zero, zero + wide), y - 6, Math.max(1, Math.abs(wide)), 12);
    context.fillStyle = paint.colours.soft;
    context.font = font(11);
    context.textAlign = "left";
    context.fillText(text, bars[n] + room + 5, y);
  }

  /** cos θ against |k|, a point per key, larger and brighter with its weight. */
  drawChart(context, box, head, weights) {
    const { viewer } = this, { state, width, height } = viewer, shares = this.shares(head);
    const at = { x: box.left + 52, y: 150, w: width - box.left - 80, h: Math.max(120, Math.min(height - 222, width - box.left - 80)) };
    this.drawShares(context, box.left, width - 12, shares, sharesOf(head, state.row, this));
    this.drawChoices(context, box.left, width - 12, head);
    const most = Math.max(1e-9, ...sample(head.keyLength)) * 1.08, [low, high] = niceRange(sample(this.cosines));
    const x = (cosine) => at.x + ((cosine - low) / (high - low)) * at.w, y = (length) => at.y + at.h * (1 - length / most);
    context.strokeStyle = paint.colours.faint;
    context.lineWidth = 1;
    context.strokeRect(at.x, at.y, at.w, at.h);
    context.beginPath(), context.moveTo(x(0), at.y), context.lineTo(x(0), at.y + at.h), context.stroke();
    context.fillStyle = paint.colours.soft;
    context.font = font(12);
    context.textAlign = "center";
    for (const tick of [low, (low + high) / 2, high]) context.fillText(number(tick, 2), x(tick), at.y + at.h + 14);
    context.fillText("cos θ", at.x + at.w / 2, at.y + at.h + 32);
    context.textAlign = "right";
    for (const tick of [0, 0.5, 1]) context.fillText(number((tick * most) / 1.08, 1), at.x - 6, y((tick * most) / 1.08));
    context.fillText("|k|", at.x - 6, at.y - 12);
    const order = upTo(0, head.keys).filter((n) => head.allowed(state.row, n)).sort((a, b) => weights[a] - weights[b]).slice(-3000);
    for (const column of order) {
      context.globalAlpha = 0.25 + 0.75 * Math.sqrt(weights[column]);
      context.fillStyle = weights[column] > 0.02 ? paint.colours.accent : paint.colours.soft;
      context.beginPath();
      context.arc(x(head.cosine(state.row, column)), y(head.keyLength[column]), 2.5 + 12 * Math.sqrt(weights[column]), 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
    context.textAlign = "left";
    context.fillStyle = paint.colours.ink;
    context.font = font(13, 600);
    for (const column of head.top(state.row, 5)) {
      const place = x(head.cosine(state.row, column)), name = label(viewer.columns[column], 12), wide = context.measureText(name).width;
      const right = place + 16 + wide < at.x + at.w;
      context.fillText(name, right ? place + 10 + 10 * Math.sqrt(weights[column]) : place - wide - 10 - 10 * Math.sqrt(weights[column]), y(head.keyLength[column]));
    }
  }

  drawShares(context, left, right, head, row) {
    context.textBaseline = "middle";
    for (const [n, [name, shares]] of [["this head", head], ["this row", row]].entries()) {
      const part = shares.variance > 0 ? shares.direction / shares.variance : NaN, y = 26 + n * 40, room = right - left - 74;
      context.textAlign = "left";
      context.fillStyle = paint.colours.soft;
      context.font = font(12);
      context.fillText(name, left, y);
      if (!(shares.variance > 0)) continue;
      context.fillStyle = paint.colours.third;
      context.fillRect(left + 74, y - 7, room, 14);
      context.fillStyle = paint.colours.second;
      context.fillRect(left + 74, y - 7, room * between(0, part, 1), 14);
      context.fillStyle = paint.colours.soft;
      const sampled = shares.rows && shares.rows < this.viewer.rows.length ? `, from ${shares.rows} rows` : "";
      context.fillText(sharesSentence(part) + sampled, left + 74, y + 17, room);
    }
  }

  /** The two choices behind the shares, which a click or a key changes. */
  drawChoices(context, left, right, head) {
    const origin = this.origin ?? originOf(head), middle = (left + right) / 2, y = 108;
    const texts = [`lengths from ${origin === "zero" ? "zero" : "the mean key"} (o)`, `${this.sink ? "with" : "without"} the first key (s)`];
    context.fillStyle = paint.colours.accent;
    context.font = font(12);
    context.textAlign = "left";
    for (const [n, text] of texts.entries()) context.fillText(text, n ? middle : left, y);
    this.choices = { left, middle, right, top: y - 12, bottom: y + 12 };
  }

  /** Another origin of the lengths, or the shares without the first key. */
  choose(what) {
    const { head } = this.viewer;
    if (what === "sink") this.sink = !this.sink;
    else if (head !== null) this.origin = (this.origin ?? originOf(head)) === "zero" ? "mean" : "zero";
    this.viewer.redraw();
  }

  /** The head's shares so far: sums over its rows, at most 512 of them, a few milliseconds at a time. */
  shares() {
    const { state } = this.viewer, name = [state.attention, state.layer, state.head, this.origin, this.sink].join("/");
    if (!this.sums.has(name)) this.sums.set(name, { rows: 0, next: 0, variance: 0, direction: 0, length: 0 });
    return this.sums.get(name);
  }

  gather(head) {
    const sum = this.shares(), until = performance.now() + PATIENCE, step = Math.max(1, Math.ceil(head.queries / 512));
    for (; sum.next < head.queries && performance.now() < until; sum.next += step, sum.rows++) {
      const row = sharesOf(head, sum.next, this);
      for (const name of ["variance", "direction", "length"]) sum[name] += row[name];
    }
    return sum.next < head.queries;
  }

  move(x, y) {
    const column = Math.floor((y - this.box.top + this.scroll) / PITCH);
    this.viewer.point(x < this.box.left && y > this.box.top && column < this.viewer.columns.length ? { row: this.viewer.state.row, column } : null);
  }

  drag(dx, dy) {
    this.scroll -= dy;
  }

  click(x, y) {
    const { choices } = this;
    if (this.box.chart && choices && y > choices.top && y < choices.bottom && x > choices.left) return this.choose(x < choices.middle ? "origin" : "sink");
    if (this.viewer.hover) this.viewer.select({ column: this.viewer.hover.column });
    return undefined;
  }

  wheel(event) {
    this.scroll += event.deltaY;
  }

  key(event) {
    const choice = { o: "origin", s: "sink" }[event.key];
    if (choice) this.choose(choice);
    return choice !== undefined || this.viewer.stepRow(event);
  }

  reveal() {
    if (!this.box || this.viewer.state.column === null) return;
    const y = this.viewer.state.column * PITCH;
    this.scroll = between(y + 2 * PITCH - (this.viewer.height - this.box.top), this.scroll, y);
  }
}

/** As shares_sentence of sightline/lens/geometry/decompose.py. */
function sharesSentence(part) {
  const direction = Math.round(100 * part);
  if (direction >= 0 && direction <= 100) return `direction explains ${direction} % of the score variance, length ${100 - direction} %`;
  const [works, against] = direction > 100 ? ["direction", "length"] : ["length", "direction"];
  const more = Math.max(direction, 100 - direction);
  return `${works} explains ${more} % of the score variance; ${against} opposes it`;
}

/** The range of these numbers and 0, rounded outwards to tenths. */
function niceRange(numbers) {
  const low = Math.floor(10 * Math.min(0, ...numbers) - 0.2) / 10, high = Math.ceil(10 * Math.max(0, ...numbers) + 0.2) / 10;
  return [Math.max(-1, low), Math.min(1, high)];
}

/** A sample of at most 16384 numbers, for their maximum. */
function sample(numbers) {
  const step = Math.ceil(numbers.length / 16384);
  return Array.from(numbers).filter((_, n) => n % step === 0);
}
