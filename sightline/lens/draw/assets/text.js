// The text itself, each token coloured by its weight for the selected query. A click selects.

"use strict";

class TextView {
  constructor(viewer) {
    this.viewer = viewer;
    this.made = null;
  }

  forget() {
    this.made = null;
  }

  /** Creates the tokens as elements, again only for another text. */
  make() {
    const { viewer } = this, { attention, data } = viewer, apart = attention.queries !== attention.keys;
    const keys = this.words(data[attention.keys], (n) => (apart ? { column: n - viewer.keyOffset } : { row: n - viewer.offset }));
    const queries = apart ? this.words(data[attention.queries], (n) => ({ row: n - viewer.offset })) : keys;
    const title = (text) => element("h3", {}, text);
    const parts = apart ? [title("target (queries)"), queries.block, title("source (keys)"), keys.block] : [keys.block];
    viewer.words.replaceChildren(...parts);
    this.made = { attention, keys: keys.spans, queries: queries.spans, levels: new Int16Array(keys.spans.length).fill(-1) };
  }

  words(tokens, selects) {
    const spaced = !tokens.texts.some((text) => text.startsWith(" ")) && this.viewer.data.language !== "ja";
    const block = element("p", { class: (spaced ? "spaced " : "") + (tokens.texts.length < 60 ? "short" : "") });
    const spans = tokens.texts.map((text, n) => {
      const repeats = tokens.repeats.has(n);
      const span = element("span", { class: repeats ? "token part" : "token" }, repeats ? "·" : shownText(text));
      span.choice = selects(n);
      return span;
    });
    block.append(...spans);
    block.addEventListener("click", (event) => event.target.choice && this.choose(event.target.choice));
    block.addEventListener("pointerover", (event) => event.target.choice && this.hover(event.target));
    block.addEventListener("pointerleave", () => this.viewer.point(null));
    return { block, spans };
  }

  choose(choice) {
    if (choice.row === undefined || choice.row >= 0) this.viewer.select(choice);
  }

  hover(span) {
    const { state, columns } = this.viewer, column = this.made.keys.indexOf(span) - this.viewer.keyOffset;
    if (column >= 0 && column < columns.length) this.viewer.point({ row: state.row, column });
  }

  draw(context) {
    const { viewer } = this, { head, state, attention } = viewer;
    if (this.made?.attention !== attention) this.make();
    if (head === null) return viewer.drawAbsence(context);
    const weights = head.weights(state.row), first = viewer.keyOffset, { keys, queries, levels } = this.made, chosen = queries[state.row + viewer.offset];
    for (let n = 0; n < keys.length; n++) {
      const level = n >= first ? Math.round(255 * Math.sqrt(weights[n - first])) : 0;
      if (levels[n] === level) continue;
      levels[n] = level;
      keys[n].style.background = level > 4 ? paint.css((level / 255) ** 2) : "";
      keys[n].style.color = level > 4 ? paint.inkOn((level / 255) ** 2) : "";
    }
    this.chosen?.classList.remove("chosen");
    chosen.classList.add("chosen");
    this.chosen = chosen;
  }

  key(event) {
    return this.viewer.stepRow(event);
  }

  reveal() {
    this.made?.queries[this.viewer.state.row + this.viewer.offset]?.scrollIntoView({ block: "nearest" });
  }
}

const shownText = (text) => text.replace(/\r?\n/g, "⏎\n") || "∅";
