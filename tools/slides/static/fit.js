// Starts the slides. Divides those that are too long between two cells, joins those that fit on one, and makes each fit:
// first smaller type, then, if it is still too long, it scrolls.
"use strict";

const SIZES = [24, 22, 20, 18, 16]; // px; smaller cannot be read in a lecture hall
const WANTED = 20; // px; slides are divided where their type would be smaller, and joined only where it is not

function leaves() {
  return [...document.querySelectorAll(".reveal .slides section")].filter((s) => !s.querySelector("section"));
}

// Whether the slide fits with type of this size, in px.
function fitsAt(slide, size) {
  slide.style.setProperty("--size", `${size}px`);
  return slide.scrollHeight <= slide.clientHeight + 1;
}

function fit(slide) {
  slide.classList.remove("scrolls");
  if (SIZES.some((size) => fitsAt(slide, size))) return;
  slide.style.setProperty("--size", "20px"); // it scrolls, so it need not be small
  slide.classList.add("scrolls");
  slide.tabIndex = 0;
}

// A slide that is not shown has no height, so it is shown while `measure` runs, whose result is returned.
function shown(slide, measure) {
  const hidden = [slide, slide.parentElement.closest("section")].filter(Boolean);
  const before = hidden.map((one) => one.style.display);
  hidden.forEach((one) => (one.style.display = "block"));
  const result = measure(slide);
  hidden.forEach((one, index) => (one.style.display = before[index]));
  return result;
}

// Moves the last cells of a slide that is too long to a new one behind it, and divides that one in the same way.
function divide(slide) {
  const moved = shown(slide, () => {
    const found = [];
    while (!fitsAt(slide, WANTED) && slide.children.length > 1) {
      found.unshift(slide.lastElementChild);
      slide.lastElementChild.remove();
    }
    return found;
  });
  if (moved.length === 0) return;
  const rest = document.createElement("section");
  const first = moved[0].classList.contains("fragment") ? [...moved.shift().childNodes] : [];
  rest.append(...first, ...moved); // a slide that begins with a fragment would be empty at first
  slide.after(rest);
  divide(rest);
}

// Many cells of a notebook are too short for a slide of their own. From the last slide to the first, each that does not
// begin a section of the chapter moves to the end of the one before, as fragments, if both fit on one. (In this order
// a sentence stays with the figure or table that follows it.)
function join() {
  const slides = leaves();
  for (let at = slides.length - 1; at > 0; at--) {
    const [before, slide] = [slides[at - 1], slides[at]];
    if (!begins(slide)) joinTwo(before, slide);
  }
}

function begins(slide) {
  return slide.querySelector(".jp-Cell")?.querySelector("h1, h2") !== null;
}

function joinTwo(before, slide) {
  if (!trial(before, [...before.children, ...slide.children], (one) => fitsAt(one, WANTED))) return;
  append(before, [...slide.children]);
  const stack = slide.parentElement;
  slide.remove();
  if (!stack.querySelector("section")) stack.remove();
}

// The slides that were joined are as full as possible, so the first of a section may hold little more than its heading.
// It gets cells of the next slide, up to one of code, as long as it stays the shorter one.
function balance() {
  const slides = leaves();
  slides.slice(0, -1).forEach((slide, at) => {
    if (!begins(slides[at + 1])) while (balanceTwo(slide, slides[at + 1]));
  });
}

function balanceTwo(slide, next) {
  const cells = [...next.children];
  const end = 1 + cells.findIndex((one) => one.matches(".jp-CodeCell") || one.querySelector(".jp-CodeCell") !== null);
  if (end === 0 || end === cells.length) return false;
  const left = trial(next, cells.slice(end), height);
  const fits = (one) => fitsAt(one, WANTED) && height(one) <= left;
  if (!trial(slide, [...slide.children, ...cells.slice(0, end)], fits)) return false;
  append(slide, cells.slice(0, end));
  const first = next.firstElementChild;
  if (first.classList.contains("fragment")) first.replaceWith(...first.childNodes);
  return true;
}

// What `measure` returns for a slide next to this one with copies of these elements.
function trial(slide, elements, measure) {
  const made = document.createElement("section");
  made.append(...elements.map((one) => one.cloneNode(true)));
  slide.parentElement.append(made);
  const result = shown(made, measure);
  made.remove();
  return result;
}

function height(slide) {
  slide.style.setProperty("--size", `${WANTED}px`);
  return Math.max(...[...slide.children].map((one) => one.offsetTop + one.offsetHeight));
}

// Puts the elements at the end of a slide, each cell as a fragment.
function append(slide, elements) {
  for (const one of elements) {
    if (one.matches(".fragment, aside")) {
      slide.append(one);
      continue;
    }
    const fragment = document.createElement("div");
    fragment.className = "fragment";
    fragment.append(one);
    slide.append(fragment);
  }
}

function fitAll() {
  leaves().forEach((slide) => shown(slide, fit));
}

// Notes behind a fragment would be shown with that fragment only, and of several only the first: each slide has one.
function gatherNotes() {
  for (const slide of leaves()) {
    const [first, ...others] = slide.querySelectorAll("aside.notes");
    if (first === undefined) continue;
    others.forEach((notes) => first.append(...notes.childNodes));
    others.forEach((notes) => notes.remove());
    slide.append(first);
  }
}

async function begin() {
  await Reveal.initialize({
    width: 1440,
    height: 810,
    margin: 0,
    center: false,
    hash: true,
    slideNumber: "c/t",
    transition: "none",
    plugins: [RevealNotes],
  });
  await Promise.all([...document.images].map((image) => image.decode().catch(() => null)));
  leaves().forEach(divide);
  join();
  balance();
  gatherNotes();
  Reveal.sync();
  fitAll();
  document.body.dataset.ready = "true";
}

begin();
