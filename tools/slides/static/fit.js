// Starts the slides, and makes each fit: first smaller type, then, if it is still too long, it scrolls.
"use strict";

const SIZES = [24, 22, 20, 18, 16]; // px; smaller cannot be read in a lecture hall

function leaves() {
  return [...document.querySelectorAll(".reveal .slides section")].filter((s) => !s.querySelector("section"));
}

function fit(slide) {
  slide.classList.remove("scrolls");
  for (const size of SIZES) {
    slide.style.setProperty("--size", `${size}px`);
    if (slide.scrollHeight <= slide.clientHeight + 1) return;
  }
  slide.style.setProperty("--size", "20px"); // it scrolls, so it need not be small
  slide.classList.add("scrolls");
  slide.tabIndex = 0;
}

// A slide that is not shown has no height: each is shown for the moment in which it is measured.
function fitAll() {
  for (const slide of leaves()) {
    const hidden = [slide, slide.parentElement.closest("section")].filter(Boolean);
    const before = hidden.map((one) => one.style.display);
    hidden.forEach((one) => (one.style.display = "block"));
    fit(slide);
    hidden.forEach((one, index) => (one.style.display = before[index]));
  }
}

async function begin() {
  // Notes behind a fragment would be shown with that fragment only: they are the whole slide's.
  document.querySelectorAll(".fragment aside.notes").forEach((notes) => notes.closest("section").append(notes));
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
  fitAll();
  document.body.dataset.ready = "true";
}

begin();
