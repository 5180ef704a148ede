// Tokens in two columns and a line for every weight: queries left, keys right. Only visible tokens are drawn.

"use strict";

const PITCH = 23; // pixels between the lines of a list
const FEW = 24; // lines per token
const LEAST = 0.004; // smaller weights get no line

class LinesView {
  constructor(viewer) {
    this.viewer = viewer;
    this.scroll = 0;
  }

  /** The positions of the two columns; a short text gets wider spacing. */
  layout() {
    const { width, height, rows, columns } = this.viewer, top = 40, room = height - top;
    const most = Math.max(rows.length, columns.length);
    this.pitch = between(PITCH, (room - 20) / most, 38);
    this.scroll = between(0, this.scroll, Math.max(0, most * this.pitch + 20 - room));
    const gap = between(260, width * 0.5, 640);
    return { top, left: (width - gap) / 2, right: (width + gap) / 2 };
  }

  y(n) {
    return this.box.top + (n + 0.5) * this.pitch - this.scroll;
  }

  visible(tokens) {
    const { height } = this.viewer, first = Math.max(0, Math.floor(this.scroll / this.pitch) - 1);
    return upTo(first, Math.min(tokens.length, first + Math.ceil((height - this.box.top) / this.pitch) + 2));
  }

  draw(context) {
    this.box = this.layout();
    const { viewer, box } = this, { head, hover, rows, columns, width } = viewer;
    if (head === null) return viewer.drawAbsence(context);
    context.lineCap = "round";
    const only = hover?.row ?? null, into = hover && hover.row === null ? hover.column : null;
    for (const row of this.visible(rows)) if (only === null || only === row) this.drawRow(context, row, { bold: only === row, into });
    if (only === null && into === null) this.drawRow(context, viewer.state.row, { bold: true, into: null });
    this.drawWords(context, rows, "right", box.left, only ?? viewer.state.row, into === null ? null : (row) => head.weights(row)[into]);
    const shown = head.weights(only ?? viewer.state.row);
    this.drawWords(context, columns, "left", box.right, into, into === null ? (column) => shown[column] : null);
    context.fillStyle = paint.colours.ground;
    context.fillRect(0, 0, width, box.top - 8);
    context.fillStyle = paint.colours.soft;
    context.font = font(12);
    context.textAlign = "right", context.fillText("query", box.left, 16);
    context.textAlign = "left", context.fillText("key", box.right, 16);
  }

  drawRow(context, row, { bold, into }) {
    const { head } = this.viewer, { left, right } = this.box, weights = head.weights(row), middle = (left + right) / 2;
    context.strokeStyle = bold ? paint.colours.second : paint.colours.accent;
    for (const column of into === null ? head.top(row, FEW) : [into]) {
      if (weights[column] < LEAST) continue;
      context.globalAlpha = between(0.03, weights[column] ** (bold ? 0.5 : 0.8), 1);
      context.lineWidth = (bold ? 1.2 : 0.8) + 3 * weights[column];
      context.beginPath();
      context.moveTo(left + 8, this.y(row));
      context.bezierCurveTo(middle, this.y(row), middle, this.y(column), right - 8, this.y(column));
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  drawWords(context, tokens, align, x, chosen, weightOf) {
    const side = align === "right" ? -1 : 1;
    context.textBaseline = "middle";
    for (const n of this.visible(tokens)) {
      const weight = weightOf ? weightOf(n) : 0, text = label(tokens[n], 24);
      context.textAlign = align;
      context.font = font(14, n === chosen ? 700 : 400);
      context.fillStyle = n === chosen ? paint.colours.second : weight >= 0.02 || !weightOf ? paint.colours.ink : paint.colours.soft;
      context.fillText(text, x, this.y(n));
      if (weight < LEAST) continue;
      const wide = context.measureText(text).width;
      context.font = font(11);
      context.fillStyle = paint.colours.soft;
      context.fillText(percent(weight), x + side * (wide + 10), this.y(n));
    }
  }

  tokenAt(x, y) {
    if (!this.box || y < this.box.top) return null;
    const { rows, columns, width } = this.viewer, n = Math.floor((y - this.box.top + this.scroll) / this.pitch);
    if (x < this.box.left + 30) return n < rows.length ? { row: n, column: null } : null;
    if (x > this.box.right - 30) return n < columns.length ? { row: null, column: n } : null;
    return null;
  }

  move(x, y) {
    this.viewer.point(this.tokenAt(x, y));
  }

  drag(dx, dy) {
    this.scroll -= dy;
  }

  click(x, y) {
    const at = this.tokenAt(x, y);
    if (at) this.viewer.select(at.row === null ? { column: at.column } : { row: at.row });
  }

  wheel(event) {
    this.scroll += event.deltaY;
  }

  key(event) {
    return this.viewer.stepRow(event);
  }

  reveal() {
    if (!this.box) return;
    const y = this.viewer.state.row * this.pitch, room = this.viewer.height - this.box.top;
    this.scroll = between(y + 2 * this.pitch - room, this.scroll, y);
  }
}
