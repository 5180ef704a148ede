// Colours, labels and other drawing helpers.

"use strict";

const RAMPS = {
  light: ["#f4f6fa", "#cbdcf1", "#86b4e2", "#3f83c2", "#1b4f8f", "#0a2149"],
  dark: ["#141922", "#18324f", "#1d5f86", "#2a97a3", "#8ed08f", "#fff6b0"],
};

const paint = {
  colours: {},
  ramp: [],

  /** Reads the theme of the page; call after it changes. */
  refresh() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ground", "panel", "ink", "soft", "faint", "accent", "second", "third"])
      this.colours[name] = style.getPropertyValue(`--${name}`).trim();
    this.ramp = rampOf(RAMPS[theme.now()]);
  },

  /** The colour of a weight, by its square root, so that 1 % is visible. */
  weight(weight) {
    return this.ramp[Math.round(255 * Math.sqrt(Math.max(0, Math.min(1, weight))))];
  },

  css(weight) {
    const [r, g, b] = this.weight(weight);
    return `rgb(${r} ${g} ${b})`;
  },

  /** A readable text colour on the colour of a weight. */
  inkOn(weight) {
    const [r, g, b] = this.weight(weight);
    return 0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#10141c" : "#ffffff";
  },
};

const theme = {
  now() {
    return document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  },
  set(name) {
    document.documentElement.dataset.theme = name;
  },
};

function rampOf(stops) {
  const points = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, n) => {
    const at = (n / 255) * (points.length - 1), low = Math.min(points.length - 2, Math.floor(at)), part = at - low;
    return points[low].map((one, i) => Math.round(one + (points[low + 1][i] - one) * part));
  });
}

const FONT = '"Noto Sans CJK JP", "Noto Sans JP", "Hiragino Sans", "Yu Gothic", Meiryo, sans-serif';
const font = (size, weight = 400) => `${weight} ${size}px system-ui, "Segoe UI", "Helvetica Neue", Arial, ${FONT}`;

/** A token as a label: without its leading space, and with marks for invisible characters. */
function label(text, most = 18) {
  const shown = text.replace(/\r?\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ (?=.)/, "").replace(/^ +$/, "␣") || "∅";
  const letters = [...shown];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : shown;
}

const number = (value, digits = 3) =>
  Number.isFinite(value) ? value.toFixed(digits).replace(/^-(?=.*[1-9])/, "−").replace("-", "") : value === -Infinity ? "−∞" : String(value);
const percent = (value) => `${(100 * value).toFixed(value >= 0.0995 ? 0 : value >= 0.00995 ? 1 : 2)} %`;

/** first, first + 1, …, last − 1 */
const upTo = (first, last) => Array.from({ length: Math.max(0, last - first) }, (_, n) => first + n);

/** An element with attributes and children; strings are inserted as text. `style` is an object: the page's policy forbids style attributes. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [property, one] of Object.entries(value)) made.style.setProperty(property, one);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** A head's thumbnail as a canvas. */
function thumbCanvas(thumbs, pixels, head) {
  const { rows, columns } = thumbs, canvas = element("canvas", { width: columns, height: rows });
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows), start = head * rows * columns;
  for (let n = 0; n < rows * columns; n++) {
    const [r, g, b] = paint.ramp[pixels[start + n]];
    image.data[4 * n] = r, image.data[4 * n + 1] = g, image.data[4 * n + 2] = b, image.data[4 * n + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
