// Segments and their blocks, to scale: a row per segment, a button per block. Blocks too narrow to be hit are drawn
// together, as a sliver that shows how much of it is allocated.
import { element, exact, size, KIB, MIB, GIB } from "./text.js";

const MOST_ROWS = 60;
const LOOKS = [4 * KIB, 64 * KIB, MIB, 20 * MIB, 256 * MIB, 2 * GIB, 16 * GIB];
const POOLS = { small: "Small pool: blocks of at most 1 MiB", large: "Large pool: blocks above 1 MiB" };
const NARROW = 3; // pixels

const chosenLook = { small: 0, large: 0 }; // bytes of each segment that are drawn; 0: all

/** What kind of block it is, for the colours and in words. */
export function kindOf(block, segment) {
  if (block.state === "active_allocated") return ["allocated", "allocated"];
  if (block.state === "active_pending_free") return ["pending", "freed, another stream is not done"];
  if (segment.expandable) return ["whole", "free in the cache; its pages can be given back"];
  if (segment.blocks.length === 1) return ["whole", "free, and the segment with it: empty_cache returns it"];
  return ["split", "free in a segment that is in use: inactive split"];
}

/** A block in words. */
export function inWords(block, segment) {
  const name = block.name ? `${block.name}: ` : "";
  const asked = block.requested && block.requested !== block.size ? `, ${exact(block.requested)} of it asked for` : "";
  return `${name}block of ${exact(block.size)}${asked}, ${kindOf(block, segment)[1]}`;
}

/** Draw the segments into `place`. `chosen(block, segment)` is called for a block, `remove(block)` when it is to be freed. */
export function drawMap(place, segments, { chosen, remove, key = "" } = {}) {
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.address : undefined;
  const pools = ["small", "large"].filter((pool) => segments.some((segment) => segment.pool === pool));
  place.replaceChildren(...pools.map((pool) => drawPool(place, pool, segments, { chosen, remove, key })));
  if (!pools.length) place.append(element("p", { cls: "help", text: "Nothing is reserved." }));
  const blocks = [...place.querySelectorAll("button.block")];
  const first = blocks.find((block) => block.dataset.address === focused) || blocks[0];
  if (first) first.tabIndex = 0;
  if (focused !== undefined && first) first.focus();
}

function drawPool(place, pool, all, options) {
  const segments = all.filter((segment) => segment.pool === pool);
  const largest = Math.max(...segments.map((segment) => segment.size));
  const look = chosenLook[pool] && chosenLook[pool] < largest ? chosenLook[pool] : largest;
  const total = segments.reduce((sum, segment) => sum + segment.size, 0);
  const kind = segments.some((segment) => segment.expandable) ? "expandable segment" : "segment";
  const several = `${segments.length.toLocaleString("en")} ${kind}${segments.length > 1 ? "s" : ""}, ${size(total)}`;
  const head = element("div", { cls: "pool-head" }, element("h3", { text: `${POOLS[pool]} (${several})` }), looks());
  const rows = segments.slice(0, MOST_ROWS).map((segment) => drawSegment(segment));
  const box = element("div", { cls: "pool" }, head, ...rows, ruler());
  if (segments.length > MOST_ROWS) {
    box.append(element("p", { cls: "help", text: `${(segments.length - MOST_ROWS).toLocaleString("en")} more segments are not drawn.` }));
  }
  return box;

  function looks() {
    const select = element("select", { "aria-label": `How much of each segment of the ${pool} pool is drawn` });
    select.append(new Option("whole segments", 0));
    for (const bytes of LOOKS) if (bytes < largest) select.append(new Option(`the first ${size(bytes)}`, bytes));
    select.value = look === largest ? 0 : look;
    select.onchange = () => {
      chosenLook[pool] = Number(select.value);
      drawMap(place, all, options);
      place.querySelector(`select[aria-label*="${pool}"]`)?.focus();
    };
    return select;
  }

  function ruler() {
    const line = element("div", { cls: "ruler", "aria-hidden": "true" });
    line.append(element("span", { text: "0" }), element("span", { text: size(look / 2) }), element("span", { text: size(look) }));
    return element("div", { cls: "segment" }, element("span", { cls: "segment-size" }), line);
  }

  function drawSegment(segment) {
    const shown = Math.min(segment.size, look);
    const room = Math.max(60, place.clientWidth - 80) * (shown / look);
    const bar = element("div", { cls: segment.expandable ? "bar expandable" : "bar" });
    bar.style.width = `max(${(100 * shown) / look}%, 4px)`;
    for (const piece of pieces(segment, shown, room)) {
      const [left, width] = [piece.left / shown, (piece.right - piece.left) / shown];
      bar.append(piece.blocks.length === 1 ? drawBlock(piece.blocks[0], segment, left, width, room * width) : drawSliver(piece, left, width));
    }
    const used = segment.blocks.filter((block) => block.state !== "inactive");
    const words = `${segment.pool}${segment.expandable ? ", expandable" : ""} segment of ${size(segment.size)}: ` +
      `${used.length} blocks in use with ${size(used.reduce((sum, block) => sum + block.size, 0))}, ` +
      `${segment.blocks.length - used.length} free`;
    const name = element("span", { cls: "segment-size", text: size(segment.size), title: words });
    return element("div", { cls: "segment", role: "group", "aria-label": words }, name, element("div", { cls: "track" }, bar));
  }

  function drawSliver(piece, left, width) {
    const drawn = element("div", { cls: "sliver" });
    place_(drawn, left, width);
    drawn.style.setProperty("--used", `${(100 * piece.used) / (piece.right - piece.left)}%`);
    drawn.title = `${piece.blocks.length} narrow blocks, ${size(piece.used)} of ${size(piece.right - piece.left)} in use`;
    return drawn;
  }

  function drawBlock(block, segment, left, width, pixels) {
    const [kind] = kindOf(block, segment);
    const words = inWords(block, segment);
    const made = element("button", { cls: `block ${kind}`, type: "button", tabindex: "-1", "aria-label": words, title: words });
    made.dataset.address = `${options.key}${block.address}`;
    place_(made, left, width);
    if (block.requested && block.requested < block.size) {
      const slack = element("span", { cls: "slack" });
      slack.style.width = `${100 * (1 - block.requested / block.size)}%`;
      made.append(slack);
    }
    const label = [block.name, pixels > 7 * (block.name.length + 10) ? size(block.size) : ""].filter(Boolean).join(" · ");
    if (label && pixels > 7 * label.length) made.append(element("span", { cls: "block-name", text: label }));
    made.onclick = () => {
      roam(place, made);
      options.chosen?.(block, segment);
    };
    made.onkeydown = (event) => key(event, made, block);
    return made;
  }

  function key(event, made, block) {
    const blocks = [...place.querySelectorAll("button.block")];
    const rows = [...place.querySelectorAll(".segment[role=group]")];
    const row = rows.indexOf(made.closest(".segment"));
    const target = {
      ArrowRight: () => blocks[blocks.indexOf(made) + 1],
      ArrowLeft: () => blocks[blocks.indexOf(made) - 1],
      ArrowDown: () => rows[row + 1]?.querySelector("button.block"),
      ArrowUp: () => rows[row - 1]?.querySelector("button.block"),
      Home: () => blocks[0],
      End: () => blocks.at(-1),
    }[event.key]?.();
    if (target) {
      event.preventDefault();
      roam(place, target);
      target.focus();
    } else if (event.key === "Delete" && block.name && options.remove) {
      event.preventDefault();
      options.remove(block);
    }
  }
}

/** What is drawn of a segment's first `shown` bytes on `room` pixels: blocks alone, or narrow neighbours together. */
function pieces(segment, shown, room) {
  const found = [];
  let at = 0;
  for (const block of segment.blocks) {
    const [left, right] = [Math.min(at, shown), Math.min(at + block.size, shown)];
    at += block.size;
    if (left === right) break;
    const narrow = (room * (right - left)) / shown < NARROW;
    const before = found.at(-1);
    const used = block.state === "inactive" ? 0 : right - left;
    if (narrow && before?.narrow && (room * (right - before.left)) / shown < 2 * NARROW) {
      before.right = right;
      before.used += used;
      before.blocks.push(block);
    } else {
      found.push({ left, right, narrow, used, blocks: [block] });
    }
  }
  return found;
}

function roam(place, made) {
  for (const other of place.querySelectorAll("button.block[tabindex='0']")) other.tabIndex = -1;
  made.tabIndex = 0;
}

function place_(made, left, width) {
  made.style.left = `${100 * left}%`;
  made.style.width = `${100 * width}%`;
}
