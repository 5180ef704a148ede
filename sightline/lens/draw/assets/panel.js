// The controls around a view: tabs, menus, the numbers of one pair, and a table with the same numbers for use without a pointer.

"use strict";

class Panel {
  constructor(viewer) {
    this.viewer = viewer;
    const { data, place } = viewer;
    this.canvas = element("canvas", { tabindex: 0, role: "img", lang: data.language });
    this.words = element("div", { class: "words", lang: data.language, tabindex: 0, hidden: true });
    this.tip = element("div", { class: "tip", hidden: true, "aria-hidden": true, lang: data.language });
    this.stage = element("div", { class: "stage" }, this.canvas, this.words, this.tip);
    this.side = element("aside", { "aria-label": "numbers", lang: data.language });
    this.tabs = NAMES.map((name, n) => this.tab(name, n));
    const tabs = element("div", { class: "tabs", role: "tablist", "aria-label": "view" }, ...this.tabs);
    const bar = element("div", { class: "bar" }, tabs, ...this.menus());
    place.append(bar, element("div", { class: "body" }, this.stage, this.side));
  }

  tab(name, n) {
    const change = () => this.viewer.change({ view: name });
    return element("button", { type: "button", role: "tab", title: `key ${n + 1}`, onclick: change }, name);
  }

  menus() {
    const { data } = this.viewer, menus = [];
    this.which = this.menu("attention", "attention", (value) => this.viewer.change({ attention: value }));
    if (data.attentions.length > 1) menus.push(this.which.label);
    this.which.fill(data.attentions.map((one, n) => [n, one.name]));
    this.layer = this.menu("layer", "layer", (value) => this.viewer.change({ layer: value }));
    this.head = this.menu("head", "head", (value) => this.viewer.change({ head: value }));
    return [...menus, this.layer.label, this.head.label];
  }

  /** A labelled menu with previous and next buttons. */
  menu(name, what, change) {
    const select = element("select", { "aria-label": name, onchange: () => change(Number(select.value)) });
    const button = (by, sign, key) => {
      const text = `${by < 0 ? "previous" : "next"} ${name} (key ${key})`;
      return element("button", { type: "button", title: text, "aria-label": text, onclick: () => this.viewer.step(what, by) }, sign);
    };
    const keys = { layer: ["[", "]"], head: [",", "."] }[name];
    const parts = keys ? [button(-1, "‹", keys[0]), select, button(1, "›", keys[1])] : [select];
    const label = element("span", { class: "menu" }, element("span", {}, name), ...parts);
    const fill = (options) => select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
    return { label, select, fill };
  }

  /** Redraws everything after a change. */
  update() {
    const { viewer } = this, { state, attention, sizes } = viewer, shown = `${state.attention}/${state.layer}`;
    if (this.shown !== shown) {
      this.layer.fill(attention.layers.map((layer) => [layer, layer in attention.looks ? layer : `${layer} (thumbnail only)`]));
      this.head.fill(upTo(0, sizes.heads).map((head) => [head, head]));
      this.shown = shown;
    }
    this.which.select.value = state.attention;
    this.layer.select.value = state.layer;
    this.head.select.value = state.head;
    for (const [n, tab] of this.tabs.entries()) tab.setAttribute("aria-selected", NAMES[n] === state.view);
    this.words.hidden = state.view !== "text";
    this.canvas.classList.toggle("behind", state.view === "text");
    const what = `${state.view} of ${attention.name} layer ${state.layer}, head ${state.head}, token ${viewer.rows[state.row]}`;
    this.canvas.setAttribute("aria-label", `${what}. The table beside it has the numbers.`);
    this.pair = element("dl", { class: "pair", "aria-live": "polite" });
    this.side.replaceChildren(this.pair, ...this.table(), this.legend(), this.notes());
    this.updatePair();
  }

  /** The numbers of the pair under the pointer, or of the selected one. */
  updatePair() {
    const { viewer } = this, { hover, state, head } = viewer, over = hover?.head !== undefined;
    this.tip.hidden = hover === null || viewer.state.view === "text";
    if (over) return this.write(this.tip, [["layer", hover.layer], ["head", hover.head]]);
    const row = hover?.row ?? state.row, column = hover?.column ?? state.column ?? head?.top(row, 1)[0];
    if (head === null || column === undefined) return this.pair.replaceChildren();
    const numbers = pairNumbers(viewer, head, row, column);
    this.write(this.pair, numbers);
    if (hover && hover.row !== null && hover.column !== null) this.write(this.tip, numbers);
    else if (hover) this.write(this.tip, [hover.row === null ? ["key", viewer.columns[hover.column]] : ["query", viewer.rows[hover.row]]]);
    return undefined;
  }

  write(place, rows) {
    place.replaceChildren(...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
  }

  moveTip(x, y) {
    const { width, height } = this.viewer, { tip } = this;
    tip.style.transform = `translate(${x + 200 > width ? x - 178 : x + 16}px, ${y + 170 > height ? y - 160 : y + 16}px)`;
  }

  /** The ten keys with the largest weights of the selected query. */
  table() {
    const { viewer } = this, { state, head, rows, columns } = viewer;
    if (head === null) return [element("p", {}, `Layer ${state.layer} is not in this page.`)];
    const title = element("caption", {}, element("b", {}, label(rows[state.row])), ` (${state.row + viewer.offset}) attends to`);
    const weights = head.weights(state.row), scores = head.scores(state.row);
    const line = (column) => {
      const button = element("button", { type: "button", onclick: () => viewer.select({ column }) }, label(columns[column], 14));
      const bar = element("td", { class: "weight", style: { "--part": `${(100 * weights[column]).toFixed(2)}%` } }, percent(weights[column]));
      const numbers = [number(scores[column], 2), number(head.keyLength[column], 1), number(head.cosine(state.row, column), 2)];
      const name = element("th", { scope: "row" }, button, element("small", {}, ` ${column + viewer.keyOffset}`));
      return element("tr", { class: column === state.column ? "chosen" : null }, name, bar, ...numbers.map((one) => element("td", {}, one)));
    };
    const titles = ["token", "weight", "score", "|k|", "cos θ"].map((name) => element("th", { scope: "col" }, name));
    const sum = 1 - weights.reduce((total, one) => total + one, 0), rest = sum > 0.0005 && head.sink > -Infinity;
    const foot = rest ? [element("tfoot", {}, element("tr", {}, element("th", {}, "sink"), element("td", {}, percent(sum))))] : [];
    const body = element("tbody", {}, ...head.top(state.row, 10).map(line));
    return [element("table", {}, title, element("thead", {}, element("tr", {}, ...titles)), body, ...foot)];
  }

  legend() {
    const stops = upTo(0, 11).map((n) => `${paint.css((n / 10) ** 2)} ${10 * n}%`).join(", ");
    const ticks = [0, 0.01, 0.1, 0.25, 0.5, 1].map((weight) => element("span", { style: { left: `${100 * Math.sqrt(weight)}%` } }, `${100 * weight}`));
    const ramp = element("div", { class: "ramp", style: { background: `linear-gradient(to right, ${stops})` } });
    return element("div", { class: "legend", "aria-hidden": true }, element("span", {}, "weight, %"), ramp, element("div", { class: "ticks" }, ...ticks));
  }

  notes() {
    const { data, attention, sizes, state } = this.viewer, look = attention.looks[state.layer], inside = Object.keys(attention.looks).map(Number);
    const text = [`${data.model}, ${attention.name}: ${counted(attention.layers.length, "layer")}, ${counted(sizes.heads, "head")}, ${sizes.queries} × ${sizes.keys} tokens.`];
    if (inside.length < attention.layers.length) text.push(`Only thumbnails of the other layers are in this page: ${listed(inside)} can be opened.`);
    if (look) text.push(look.form === "float32" ? "Rebuilt here from q and k (float32)." : "Rebuilt here from q and k (16 bits).");
    return element("p", { class: "notes" }, text.join(" "));
  }
}

const counted = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;

function pairNumbers(viewer, head, row, column) {
  return [
    ["query", `${label(viewer.rows[row])} ${row + viewer.offset}`],
    ["key", `${label(viewer.columns[column])} ${column + viewer.keyOffset}`],
    ["weight", number(head.weights(row)[column], 4)],
    ["score", number(head.score(row, column), 3)],
    ["|q|", number(head.queryLength[row], 3)],
    ["|k|", number(head.keyLength[column], 3)],
    ["cos θ", number(head.cosine(row, column), 4)],
  ];
}
