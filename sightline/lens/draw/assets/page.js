// The page: its traces, the keyboard, the theme, the URL, and tokens coloured by probability.

"use strict";

const STEPS = { "[": ["layer", -1], "]": ["layer", 1], ",": ["head", -1], ".": ["head", 1] };
const viewers = [];
let active = null;

function start() {
  const wanted = decodeURIComponent(location.hash.slice(1)), [dark] = wanted.match(/\b(dark|light)\b/) ?? [];
  if (dark) theme.set(dark);
  paint.refresh();
  for (const word of document.querySelectorAll("[data-part]")) word.style.setProperty("--part", `${word.dataset.part}%`);
  const places = [...document.querySelectorAll("[data-trace]")];
  for (const place of places) {
    const pile = place.dataset.trace, text = (name) => document.getElementById(`${pile}-${name}`).textContent;
    const viewer = new Viewer(place, JSON.parse(text("data")), (n) => bytesOf(text(n)));
    viewer.alone = places.length === 1 && document.body.classList.contains("alone");
    for (const event of ["pointerdown", "focusin"]) place.addEventListener(event, () => (active = viewer));
    viewers.push(viewer);
  }
  active = viewers[0] ?? null;
  readHash();
  for (const viewer of viewers) viewer.changed = writeHash;
  addEventListener("hashchange", readHash);
  addEventListener("keydown", onKey);
  document.getElementById("theme").addEventListener("click", toggleTheme);
  for (const name of ["help-button", "help-close"]) document.getElementById(name).addEventListener("click", help);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", retheme);
  document.addEventListener("pointerover", showAlternatives);
  document.addEventListener("focusin", showAlternatives);
}

// ------------------------------------------------------------------------------------------------------------- the URL

function readHash() {
  const states = decodeURIComponent(location.hash.slice(1)).split(";");
  for (const [n, viewer] of viewers.entries()) if (states[n]) viewer.hash = states[n];
}

function writeHash() {
  if (location.protocol === "about:") return; // a page inside a notebook has no URL
  const chosen = document.documentElement.dataset.theme;
  history.replaceState(null, "", `#${viewers.map((viewer) => viewer.hash).join(";")}${chosen ? `,${chosen}` : ""}`);
}

// --------------------------------------------------------------------------------------------------------------- the theme

function toggleTheme() {
  theme.set(theme.now() === "dark" ? "light" : "dark");
  retheme();
  if (viewers.length) writeHash();
}

function retheme() {
  paint.refresh();
  for (const viewer of viewers) viewer.retheme();
}

// ------------------------------------------------------------------------------------------------------------ the keyboard

function help() {
  const dialog = document.getElementById("help");
  dialog.open ? dialog.close() : dialog.showModal();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { key, target } = event, typing = /^(SELECT|INPUT|TEXTAREA)$/.test(target.tagName);
  if (key === "?") return help();
  if (key === "t") return toggleTheme();
  if (!active || typing || document.getElementById("help").open) return undefined;
  if (/^[1-6]$/.test(key)) return active.change({ view: NAMES[key - 1] });
  if (key in STEPS) return active.step(...STEPS[key]);
  if (key === "a" && active.data.attentions.length > 1) {
    return active.change({ attention: (active.state.attention + 1) % active.data.attentions.length });
  }
  const here = active.alone || active.place.contains(document.activeElement), onButton = key === "Enter" && target.tagName === "BUTTON";
  if (here && !onButton && active.view.key?.(event)) event.preventDefault(), active.redraw();
  return undefined;
}

// --------------------------------------------------------------------------------------------------- tokens by probability

/** Shows the alternatives of the token under the pointer or the focus. */
function showAlternatives(event) {
  const word = event.target.closest?.("[data-alternatives]"), old = document.querySelector(".alternatives");
  if (!word) return old?.remove();
  if (old?.word === word) return undefined;
  old?.remove();
  const lines = JSON.parse(word.dataset.alternatives).map(([text, probability]) =>
    element("tr", {}, element("th", { scope: "row" }, label(text, 24)), element("td", { class: "weight", style: { "--part": `${(100 * probability).toFixed(2)}%` } }, percent(probability))),
  );
  const box = element("table", { class: "alternatives", role: "tooltip", lang: word.closest("[lang]").lang }, element("tbody", {}, ...lines));
  box.word = word;
  const at = word.getBoundingClientRect();
  box.style.left = `${between(8, at.left + scrollX, Math.max(8, innerWidth - 260))}px`;
  box.style.top = `${at.bottom + scrollY + 4}px`;
  document.body.append(box);
  return undefined;
}

start();
