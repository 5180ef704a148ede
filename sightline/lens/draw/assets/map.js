// The map of one head: rows are queries, columns are keys. It is drawn in strips, only where visible, over its thumbnail.

"use strict";

class MapView {
  constructor(viewer) {
    this.viewer = viewer;
    this.strips = new Strips(viewer);
    this.wanted = 0; // requested pixels per token; 0: fit to the window
    this.cell = 1; // actual pixels per token
    this.x = this.y = 0; // the token at the upper left
  }

  forget() {
    this.strips.clear();
  }

  /** Margins and the size of a cell. */
  layout() {
    const { width, height, rows, columns } = this.viewer;
    const left = between(70, width * 0.11, 130), top = 92;
    const w = width - left - 14, h = height - top - 14;
    this.fits = Math.min(56, w / columns.length, h / rows.length);
    this.cell = Math.max(this.fits, this.wanted);
    this.x = between(0, this.x, Math.max(0, columns.length - w / this.cell));
    this.y = between(0, this.y, Math.max(0, rows.length - h / this.cell));
    return { left, top, w: Math.min(w, columns.length * this.cell), h: Math.min(h, rows.length * this.cell) };
  }

  draw(context) {
    const box = (this.box = this.layout()), { viewer } = this;
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.w, box.h);
    context.clip();
    context.imageSmoothingEnabled = false;
    this.drawThumb(context, box);
    const more = viewer.head !== null && this.strips.draw(context, box, this);
    this.drawGrid(context, box);
    this.drawCross(context, box);
    context.restore();
    this.drawLabels(context, box);
    if (this.cell > this.fits * 1.05) this.drawOverview(context, box);
    if (viewer.head === null) viewer.drawAbsence(context);
    return more;
  }

  drawThumb(context, box) {
    const { rows, columns } = this.viewer;
    const picture = this.viewer.thumb(this.viewer.state.layer, this.viewer.state.head);
    context.globalAlpha = 0.6;
    const at = [box.left - this.x * this.cell, box.top - this.y * this.cell];
    context.drawImage(picture, ...at, columns.length * this.cell, rows.length * this.cell);
    context.globalAlpha = 1;
  }

  drawGrid(context, box) {
    if (this.cell < 12) return;
    const { head } = this.viewer;
    context.strokeStyle = paint.colours.ground;
    context.lineWidth = 1;
    context.beginPath();
    for (const n of this.visibleColumns()) {
      const at = Math.round(this.left(n)) + 0.5;
      context.moveTo(at, box.top), context.lineTo(at, box.top + box.h);
    }
    for (const n of this.visibleRows()) {
      const at = Math.round(this.top(n)) + 0.5;
      context.moveTo(box.left, at), context.lineTo(box.left + box.w, at);
    }
    context.stroke();
    if (this.cell < 28 || head === null) return;
    context.font = font(between(9, this.cell * 0.3, 12));
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const row of this.visibleRows()) {
      const weights = head.weights(row);
      for (const column of this.visibleColumns()) {
        if (weights[column] < 0.005) continue;
        context.fillStyle = paint.inkOn(weights[column]);
        context.fillText(Math.round(100 * weights[column]), this.left(column) + this.cell / 2, this.top(row) + this.cell / 2);
      }
    }
  }

  /** The visible rows, or columns. */
  visibleRows() {
    return upTo(Math.floor(this.y), Math.min(this.viewer.rows.length, Math.ceil(this.y + this.box.h / this.cell)));
  }

  visibleColumns() {
    return upTo(Math.floor(this.x), Math.min(this.viewer.columns.length, Math.ceil(this.x + this.box.w / this.cell)));
  }

  left(column) {
    return this.box.left + (column - this.x) * this.cell;
  }

  top(row) {
    return this.box.top + (row - this.y) * this.cell;
  }

  drawCross(context, box) {
    const { state, hover } = this.viewer, side = Math.max(this.cell, 2);
    context.lineWidth = 1.5;
    for (const [at, colour] of [[state, paint.colours.accent], [hover, paint.colours.second]]) {
      if (!at) continue;
      context.strokeStyle = colour;
      if (at.row !== null) context.strokeRect(box.left - 2, this.top(at.row), box.w + 4, side);
      if (at.column !== null) context.strokeRect(this.left(at.column), box.top - 2, side, box.h + 4);
    }
  }

  drawLabels(context, box) {
    const { rows, columns, state, hover } = this.viewer, every = Math.max(1, Math.ceil(15 / this.cell));
    context.textBaseline = "middle";
    const write = (text, chosen) => {
      context.font = font(between(10, this.cell * 0.72, 13), chosen ? 700 : 400);
      context.fillStyle = chosen ? paint.colours.accent : paint.colours.soft;
      context.fillText(text, 0, 0);
    };
    const shown = (seen, named) => {
      const chosen = [state, hover].map((at) => at?.[named]).filter((n) => seen.includes(n));
      const free = (n) => !chosen.some((other) => Math.abs(other - n) * this.cell < (every > 1 ? 13 : 1));
      return [...seen.filter((n) => n % every === 0 && free(n)).map((n) => [n, false]), ...chosen.map((n) => [n, true])];
    };
    const text = (tokens, n) => label(tokens[n], every > 1 ? 9 : 16) + (every > 1 ? ` ${n}` : "");
    for (const [row, chosen] of shown(this.visibleRows(), "row")) {
      context.save();
      context.translate(box.left - 7, this.top(row) + this.cell / 2);
      context.textAlign = "right";
      write(text(rows, row), chosen);
      context.restore();
    }
    for (const [column, chosen] of shown(this.visibleColumns(), "column")) {
      context.save();
      context.translate(this.left(column) + this.cell / 2, box.top - 8);
      context.rotate(-Math.PI / 3.2);
      context.textAlign = "left";
      write(text(columns, column), chosen);
      context.restore();
    }
  }

  /** The whole map in a corner, with a frame around the visible part; in the corner that a causal map leaves empty. */
  drawOverview(context, box) {
    const { rows, columns, width, state } = this.viewer, side = 132;
    const w = side * Math.min(1, columns.length / rows.length), h = side * Math.min(1, rows.length / columns.length);
    const at = (this.overview = { x: width - w - 26, y: box.top + 12, w, h });
    const picture = this.viewer.thumb(state.layer, state.head);
    context.fillStyle = paint.colours.panel;
    context.fillRect(at.x - 4, at.y - 4, w + 8, h + 8);
    context.imageSmoothingEnabled = picture.width > w;
    context.drawImage(picture, at.x, at.y, w, h);
    context.strokeStyle = paint.colours.faint;
    context.strokeRect(at.x - 4, at.y - 4, w + 8, h + 8);
    context.strokeStyle = paint.colours.second;
    const part = [box.w / this.cell / columns.length, box.h / this.cell / rows.length];
    const frame = [Math.max(4, part[0] * w), Math.max(4, part[1] * h)];
    context.strokeRect(at.x + (this.x / columns.length) * w, at.y + (this.y / rows.length) * h, ...frame);
  }

  cellAt(x, y) {
    const { box, viewer } = this;
    if (!box || x < box.left || y < box.top || x >= box.left + box.w || y >= box.top + box.h) return null;
    const row = Math.floor(this.y + (y - box.top) / this.cell), column = Math.floor(this.x + (x - box.left) / this.cell);
    return row < viewer.rows.length && column < viewer.columns.length ? { row, column } : null;
  }

  inOverview(x, y) {
    const at = this.overview;
    return this.cell > this.fits * 1.05 && at && x >= at.x && y >= at.y && x <= at.x + at.w && y <= at.y + at.h;
  }

  move(x, y) {
    this.viewer.point(this.inOverview(x, y) ? null : this.cellAt(x, y));
  }

  drag(dx, dy, x, y) {
    if (this.inOverview(x, y)) return this.jump(x, y);
    this.x -= dx / this.cell;
    this.y -= dy / this.cell;
  }

  jump(x, y) {
    const { rows, columns } = this.viewer, at = this.overview;
    this.x = ((x - at.x) / at.w) * columns.length - this.box.w / this.cell / 2;
    this.y = ((y - at.y) / at.h) * rows.length - this.box.h / this.cell / 2;
  }

  click(x, y) {
    if (this.inOverview(x, y)) return this.jump(x, y);
    const at = this.cellAt(x, y);
    if (at) this.viewer.select(at);
  }

  wheel(event, x, y) {
    if (event.shiftKey) {
      this.x += (event.deltaX || event.deltaY) / this.cell;
      this.y += event.deltaX ? event.deltaY / this.cell : 0;
    } else this.zoom(Math.exp(-event.deltaY * 0.0015), x, y);
  }

  zoom(factor, x, y) {
    if (!this.box) return;
    const { box } = this, cell = between(this.fits, this.cell * factor, 64);
    const at = [between(box.left, x, box.left + box.w) - box.left, between(box.top, y, box.top + box.h) - box.top];
    this.x += at[0] / this.cell - at[0] / cell;
    this.y += at[1] / this.cell - at[1] / cell;
    this.cell = this.wanted = cell;
  }

  key(event) {
    const { state, rows, columns } = this.viewer, leap = event.shiftKey ? 10 : 1;
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "+" || event.key === "=" || event.key === "-") {
      const at = this.box ? [this.left(this.viewer.column), this.top(state.row)] : [0, 0];
      this.zoom(event.key === "-" ? 1 / 1.4 : 1.4, ...at);
      return true;
    }
    if (event.key === "0") this.wanted = 0;
    if (!steps) return event.key === "0";
    const row = between(0, state.row + steps[0] * leap, rows.length - 1);
    const column = steps[1] ? between(0, this.viewer.column + steps[1] * leap, columns.length - 1) : state.column;
    this.viewer.select({ row, column });
    return true;
  }

  /** Scrolls the selection into view. */
  reveal() {
    const { state } = this.viewer, { box } = this;
    if (!box) return;
    const w = box.w / this.cell, h = box.h / this.cell;
    this.y = between(state.row - h + 1, this.y, state.row);
    if (state.column !== null) this.x = between(state.column - w + 1, this.x, state.column);
  }
}
