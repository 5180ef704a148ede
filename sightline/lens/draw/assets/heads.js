// Thumbnails of all heads: a row per layer, a column per head. A click opens the map.

"use strict";

class HeadsView {
  constructor(viewer) {
    this.viewer = viewer;
    this.scroll = 0;
  }

  layout() {
    const { width, height, attention } = this.viewer, left = 64, top = 40;
    const most = Math.min((width - left - 12) / attention.heads, 150);
    const fits = (height - top - 12) / attention.layers.length, cell = Math.min(most, fits < 44 ? 72 : fits);
    this.scroll = between(0, this.scroll, Math.max(0, attention.layers.length * cell - (height - top - 12)));
    return { left, top, cell };
  }

  draw(context) {
    const { attention, height, width } = this.viewer, { left, top, cell } = (this.box = this.layout());
    context.textBaseline = "middle";
    for (const [n, layer] of attention.layers.entries()) {
      const y = top + n * cell - this.scroll;
      if (y + cell < top || y > height) continue;
      this.drawLayer(context, layer, y);
    }
    context.fillStyle = paint.colours.ground;
    context.fillRect(0, 0, width, top);
    context.fillStyle = paint.colours.soft;
    context.font = font(12);
    context.textAlign = "center";
    const every = Math.ceil(26 / cell);
    for (let head = 0; head < attention.heads; head += every) context.fillText(head, left + (head + 0.5) * cell, top - 10);
    context.textAlign = "left";
    context.fillText("head →", 8, top - 10);
  }

  drawLayer(context, layer, y) {
    const { attention, state, hover } = this.viewer, { left, cell } = this.box, gap = cell > 30 ? 3 : 1;
    const inside = layer in attention.looks;
    context.font = font(12, layer === state.layer ? 700 : 400);
    context.textAlign = "right";
    context.fillStyle = layer === state.layer ? paint.colours.accent : paint.colours.soft;
    context.fillText(cell >= 30 && layer === attention.layers[0] ? `layer ${layer}` : layer, left - 10, y + cell / 2);
    for (let head = 0; head < attention.thumbs[layer].heads; head++) {
      const x = left + head * cell, picture = this.viewer.thumb(layer, head);
      context.globalAlpha = inside ? 1 : 0.35;
      context.imageSmoothingEnabled = picture.width > cell;
      context.drawImage(picture, x + gap, y + gap, cell - 2 * gap, cell - 2 * gap);
      context.globalAlpha = 1;
      const chosen = layer === state.layer && head === state.head, under = hover?.layer === layer && hover?.head === head;
      context.strokeStyle = chosen ? paint.colours.accent : under ? paint.colours.second : paint.colours.faint;
      context.lineWidth = chosen || under ? 2.5 : 1;
      context.strokeRect(x + gap, y + gap, cell - 2 * gap, cell - 2 * gap);
    }
  }

  headAt(x, y) {
    const { attention } = this.viewer, { left, top, cell } = this.box;
    const layer = attention.layers[Math.floor((y - top + this.scroll) / cell)], head = Math.floor((x - left) / cell);
    return y >= top && layer !== undefined && head >= 0 && head < attention.thumbs[layer].heads ? { layer, head } : null;
  }

  move(x, y) {
    const at = this.headAt(x, y);
    this.viewer.point(at && { ...at, row: null, column: null });
  }

  drag(dx, dy) {
    this.scroll -= dy;
  }

  click(x, y) {
    const at = this.headAt(x, y);
    if (at) this.viewer.change({ ...at, view: "map" });
  }

  wheel(event) {
    this.scroll += event.deltaY;
  }

  key(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter") this.viewer.change({ view: "map" });
    if (steps?.[0]) this.viewer.step("layer", steps[0]);
    if (steps?.[1]) this.viewer.step("head", steps[1]);
    return steps !== undefined || event.key === "Enter";
  }

  reveal() {
    if (!this.box) return;
    const { state, attention, height } = this.viewer, { top, cell } = this.box, y = attention.layers.indexOf(state.layer) * cell;
    this.scroll = between(y + cell - (height - top - 12), this.scroll, y);
  }
}
