// One trace on the page: its state, its views, and the numbers beside them.

"use strict";

const VIEWS = { map: MapView, heads: HeadsView, lines: LinesView, geometry: GeometryView, sphere: SphereView, text: TextView };
const NAMES = Object.keys(VIEWS);

class Viewer {
  constructor(place, data, read) {
    this.place = place;
    this.data = data;
    this.read = read;
    this.looks = new Map();
    this.thumbs = new Map();
    for (const part of ["tokens", "source", "produced"]) if (data[part]) data[part].repeats = new Set(data[part].repeats);
    this.hover = null;
    this.state = { attention: 0, column: null, ...data.start };
    this.views = Object.fromEntries(NAMES.map((name) => [name, new VIEWS[name](this)]));
    this.panel = new Panel(this);
    this.canvas = this.panel.canvas;
    this.words = this.panel.words;
    this.state.row ??= this.rows.length - 1;
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.panel.stage);
    this.change({});
  }

  // ------------------------------------------------------------------------------------------------------- the state

  get view() {
    return this.views[this.state.view];
  }

  get attention() {
    return this.data.attentions[this.state.attention];
  }

  /** The sizes of the layer, also if its q and k are not in the page. */
  get sizes() {
    return this.attention.thumbs[this.state.layer];
  }

  /** The texts of the queries and keys; only the last ones if a cache has dropped the others. */
  get rows() {
    return this.data[this.attention.queries].texts.slice(this.offset);
  }

  get columns() {
    return this.data[this.attention.keys].texts.slice(this.keyOffset);
  }

  get offset() {
    return this.data[this.attention.queries].texts.length - this.sizes.queries;
  }

  get keyOffset() {
    return this.data[this.attention.keys].texts.length - this.sizes.keys;
  }

  /** The head that computes weights; null if its layer is not in the page. */
  get head() {
    const { layer, head, attention } = this.state, data = this.attention.looks[layer], name = `${attention}/${layer}`;
    if (data === undefined) return null;
    if (!this.looks.has(name)) {
      if (this.looks.size >= 6) this.looks.delete(this.looks.keys().next().value);
      this.looks.set(name, new Look(data, this.read));
    }
    return this.looks.get(name).head(head);
  }

  /** The key whose numbers are shown: the selected one, or that with the largest weight. */
  get column() {
    return this.state.column ?? this.head?.top(this.state.row, 1)[0] ?? 0;
  }

  thumb(layer, head) {
    const name = [this.state.attention, layer, head].join("/"), thumbs = this.attention.thumbs[layer];
    if (!this.thumbs.has(name)) {
      thumbs.bytes ??= this.read(thumbs.pixels);
      this.thumbs.set(name, thumbCanvas(thumbs, thumbs.bytes, head));
    }
    return this.thumbs.get(name);
  }

  // ------------------------------------------------------------------------------------------------------- changes

  /** Another view, attention, layer, head or token; values out of range are clamped. */
  change(wanted) {
    const before = this.state, state = (this.state = { ...before, ...wanted });
    state.attention = between(0, state.attention, this.data.attentions.length - 1);
    if (!(state.view in VIEWS)) state.view = "map";
    const { layers } = this.attention;
    state.layer = layers.reduce((best, layer) => (Math.abs(layer - state.layer) < Math.abs(best - state.layer) ? layer : best), layers[0]);
    state.head = between(0, state.head, this.sizes.heads - 1);
    state.row = between(0, state.row, this.sizes.queries - 1);
    if (state.column !== null) state.column = between(0, state.column, this.sizes.keys - 1);
    if (state.attention !== before.attention) this.views.map.wanted = 0;
    this.hover = null;
    this.panel.update();
    this.needsReveal = true;
    this.redraw();
    this.changed?.();
  }

  select(token) {
    this.change(token);
  }

  step(what, by) {
    const { layers } = this.attention;
    if (what === "layer") this.change({ layer: layers[between(0, layers.indexOf(this.state.layer) + by, layers.length - 1)] });
    else this.change({ head: this.state.head + by });
  }

  stepRow(event) {
    const by = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key];
    if (by) this.change({ row: this.state.row + by * (event.shiftKey ? 10 : 1) });
    return by !== undefined;
  }

  /** Sets what the pointer is over. */
  point(at) {
    if (JSON.stringify(at) === JSON.stringify(this.hover)) return;
    this.hover = at;
    this.panel.updatePair();
    this.redraw();
  }

  retheme() {
    this.thumbs.clear();
    for (const view of Object.values(this.views)) view.forget?.();
    this.panel.update();
    this.redraw();
  }

  // ------------------------------------------------------------------------------------------------------------ drawing

  resize() {
    this.ratio = devicePixelRatio || 1;
    this.width = this.panel.stage.clientWidth;
    this.height = this.panel.stage.clientHeight;
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    this.redraw();
  }

  redraw() {
    if (this.scheduled || !this.width) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      this.draw();
    });
  }

  draw() {
    const context = this.canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.globalAlpha = 1;
    context.clearRect(0, 0, this.width, this.height);
    if (this.needsReveal) this.reveal(context);
    if (this.view.draw(context)) this.redraw();
    else this.place.dataset.ready = Object.values(this.state).join(" ");
  }

  /** Scrolls to the selection; a view must have been drawn once to know where that is. */
  reveal(context) {
    this.needsReveal = false;
    if (!this.view.box) this.view.draw(context), context.clearRect(0, 0, this.width, this.height);
    this.view.reveal?.();
  }

  /** A message for a layer that was left out. */
  drawAbsence(context) {
    context.font = font(14);
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillStyle = paint.colours.panel;
    context.fillRect(this.width / 2 - 230, this.height - 58, 460, 56);
    context.fillStyle = paint.colours.ink;
    context.fillText(`Layer ${this.state.layer} is not in this page, only its thumbnail.`, this.width / 2, this.height - 40);
    context.fillText(`Included: ${listed(Object.keys(this.attention.looks).map(Number))}.`, this.width / 2, this.height - 18);
  }

  // ------------------------------------------------------------------------------------------------------------ pointer

  listen() {
    const { canvas } = this, at = (event) => [event.offsetX, event.offsetY];
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      from = { x: event.offsetX, y: event.offsetY, far: 0 };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = at(event);
      if (!this.view.box) return undefined; // not drawn yet
      this.panel.moveTip(x, y);
      if (!from) return this.view.move?.(x, y);
      from.far += Math.hypot(x - from.x, y - from.y);
      if (from.far > 4) this.view.drag?.(x - from.x, y - from.y, x, y), this.redraw();
      [from.x, from.y] = [x, y];
      return undefined;
    });
    canvas.addEventListener("pointerup", (event) => {
      if (from && from.far <= 4 && this.view.box) this.view.click?.(...at(event));
      from = null;
      this.redraw();
    });
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("wheel", (event) => this.roll(event), { passive: false });
  }

  /** Among other sections the wheel scrolls the page until the picture is clicked. */
  roll(event) {
    if (!this.view.wheel || !this.view.box || !(this.alone || this.place.contains(document.activeElement))) return;
    event.preventDefault();
    this.view.wheel(event, event.offsetX, event.offsetY);
    this.redraw();
  }

  // ------------------------------------------------------------------------------------------------------- in the address

  get hash() {
    const { view, attention, layer, head, row, column } = this.state;
    const kind = this.data.attentions.length > 1 ? `,a${attention}` : "";
    return `${view}${kind},l${layer},h${head},t${row}` + (column === null ? "" : `,k${column}`);
  }

  set hash(text) {
    const wanted = {}, names = { a: "attention", l: "layer", h: "head", t: "row", k: "column" };
    for (const part of text.split(",")) {
      if (part in VIEWS) wanted.view = part;
      else if (/^[alhtk]\d+$/.test(part)) wanted[names[part[0]]] = Number(part.slice(1));
    }
    this.change(wanted);
  }
}

/** 3, 4, 5, 9 as "layers 3–5, 9". */
function listed(layers) {
  const runs = [];
  for (const layer of layers) {
    if (runs.length && layer === runs.at(-1)[1] + 1) runs.at(-1)[1] = layer;
    else runs.push([layer, layer]);
  }
  return `layer${layers.length === 1 ? "" : "s"} ` + runs.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(", ");
}
