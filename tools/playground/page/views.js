// What the page shows of a state: the card's bar, counters, moves.
import { element, fillTable, mib, size } from "./text.js";

const ROWS = [
  ["allocated_bytes", "allocated: in blocks handed out"],
  ["reserved_bytes", "reserved: taken from the device"],
  ["requested_bytes", "requested: what was asked for"],
  ["inactive_split_bytes", "inactive split: free, in segments in use"],
];
const COUNTS = [
  ["allocation.all.current", "blocks in use"],
  ["segment.all.current", "segments"],
  ["num_device_alloc", "segments taken (cudaMalloc)"],
  ["num_device_free", "given back (cudaFree)"],
  ["num_alloc_retries", "retries"],
  ["num_ooms", "out of memory"],
];

/** The whole card as one bar: context, allocated, cached, free. */
export function drawCard(place, card) {
  const parts = [
    ["context", "CUDA context", card.context],
    ["allocated", "allocated", card.allocated],
    ["cached", "free in PyTorch's cache", card.reserved - card.allocated],
    ["device", "free on the device", card.free],
  ].filter(([, , bytes]) => bytes > 0);
  const bar = element("div", { cls: "card-bar", role: "img" });
  for (const [kind, , bytes] of parts) {
    const part = element("span", { cls: `part ${kind}` });
    part.style.width = `${(100 * bytes) / card.total}%`;
    bar.append(part);
  }
  if (card.allowed !== null) {
    const limit = element("span", { cls: "limit" });
    limit.style.left = `${(100 * (card.context + card.allowed)) / card.total}%`;
    bar.append(limit);
  }
  const words = parts.map(([, name, bytes]) => `${name} ${size(bytes)}`);
  const allowed = card.allowed === null ? "" : `; PyTorch may take ${size(card.allowed)}`;
  bar.setAttribute("aria-label", `A card of ${size(card.total)}: ${words.join(", ")}${allowed}.`);
  const legend = element("p", { cls: "legend", text: `${size(card.total)}: ` });
  for (const [kind, name, bytes] of parts) {
    legend.append(element("span", { cls: "key" }, element("i", { cls: `swatch part ${kind}`, "aria-hidden": "true" }), `${name} ${size(bytes)}`));
  }
  if (card.allowed !== null) {
    legend.append(element("span", { cls: "key" }, element("i", { cls: "swatch limit-key", "aria-hidden": "true" }), `PyTorch may take ${size(card.allowed)}`));
  }
  place.replaceChildren(bar, legend);
}

/** The counters that matter, and all others. */
export function drawCounters(counters) {
  const head = ["torch.cuda.memory_stats()", "current", "peak", "small pool", "large pool"];
  const rows = ROWS.map(([key, name]) => [
    name,
    ...["all.current", "all.peak", "small_pool.current", "large_pool.current"].map((end) => mib(counters[`${key}.${end}`])),
  ]);
  fillTable(document.getElementById("counters"), "Counters in bytes", [head, ...rows]);
  ROWS.forEach(([key], row) => {
    document.querySelectorAll("#counters tbody th")[row].title = `${key}.all.current`;
  });
  document.getElementById("counts").replaceChildren(
    ...COUNTS.map(([key, name]) => {
      const count = element("span", { cls: "count", title: key }, element("b", { text: counters[key].toLocaleString("en") }));
      count.append(` ${name}`);
      return count;
    }),
  );
  const all = Object.entries(counters).map(([key, value]) => [key, value.toLocaleString("en")]);
  fillTable(document.getElementById("all-counters"), "Every counter", [["counter", "value"], ...all]);
}

/** The moves, newest first, and the program that they make. */
export function drawMoves(state) {
  const moves = state.moves.map((move) => {
    const line = element("li", {}, element("b", { text: move.text }));
    if (move.said.length) line.append(element("span", { text: ` ${move.said.join(" ")}` }));
    if (move.error) line.classList.add("failed");
    return line;
  });
  const log = document.getElementById("log");
  log.start = state.before + state.made;
  log.replaceChildren(...moves.reverse());
  document.getElementById("program").textContent = state.program;
}
