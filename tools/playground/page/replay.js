// A snapshot that the reader drops: read, replayed under its own settings and under others, side by side.
import { ask } from "./desk.js";
import { drawMap } from "./map.js";
import { element, exact, fillTable, mib, say, size } from "./text.js";

const at = (id) => document.getElementById(id);
let history = null;

/** Make the section work. */
export function startReplay() {
  const drop = at("drop");
  at("file").onchange = () => read(at("file").files[0]);
  for (const name of ["dragover", "dragleave", "drop"]) {
    at("replay").addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", name === "dragover");
      if (name === "drop" && event.dataTransfer.files.length) read(event.dataTransfer.files[0]);
    });
  }
  at("gpu").onchange = async () => shown(await ask({ do: "device", device: Number(at("gpu").value) }));
  at("replay-form").onsubmit = (event) => {
    event.preventDefault();
    replay();
  };
}

async function read(file) {
  if (!file) return;
  at("about").textContent = `Reading ${file.name} …`;
  const answer = await ask({ do: "snapshot", name: file.name }, await file.arrayBuffer());
  if (answer.ok) {
    at("gpu").replaceChildren(...answer.devices.map((device) => new Option(device, device)));
    at("gpu-label").hidden = answer.devices.length < 2;
  }
  shown(answer, file.name);
}

function shown(answer, name = "the file") {
  say("file-error", answer.ok ? "" : answer.error);
  at("history").hidden = !answer.ok;
  at("results").hidden = true;
  if (!answer.ok) return;
  history = answer.history;
  at("about").textContent =
    `${name}: ${history.events.toLocaleString("en")} events, written by a PyTorch whose free blocks are searched as in ` +
    `${history.version}${history.version === "2.11" ? " and before" : ""}, with ${history.settings || "the default settings"}. ` +
    (history.total === null
      ? "Nothing says how much memory the card had: type it."
      : "How much PyTorch could take is read off its failures.");
  at("notes").replaceChildren(...history.notes.map((note) => element("li", { text: note })));
  at("replay-total").value = history.total === null ? "80 GiB" : `${history.total} B`;
  replay();
}

async function replay() {
  const total = at("replay-total").value;
  at("replay-form").setAttribute("aria-busy", "true");
  const own = await ask({ do: "replay", settings: history.settings, total });
  const other = own.ok ? await ask({ do: "replay", settings: at("replay-settings").value, total }) : own;
  at("replay-form").removeAttribute("aria-busy");
  say("replay-error", other.ok ? "" : other.error);
  at("results").hidden = !other.ok;
  if (other.ok) draw(own.played, other.played);
}

function draw(own, other) {
  const names = ["as it was", other.settings || "the defaults"];
  const rows = [
    ["peak allocated", "", "allocated_bytes.all.peak"],
    ["peak reserved", history.peak_reserved, "reserved_bytes.all.peak"],
    ["peak inactive split", "", "inactive_split_bytes.all.peak"],
    ["allocated at the end", "", "allocated_bytes.all.current"],
    ["reserved at the end", history.reserved, "reserved_bytes.all.current"],
    ["segments taken", history.segments_got, "num_device_alloc"],
    ["segments given back", history.segments_freed, "num_device_free"],
    ["retries", "", "num_alloc_retries"],
  ].map(([name, inFile, key]) => {
    const text = key.includes("bytes") ? mib : (count) => count.toLocaleString("en");
    return [name, inFile === "" ? "–" : text(inFile), text(own.counters[key]), text(other.counters[key])];
  });
  rows.push(["failed requests", history.failed, own.failed, other.failed]);
  if (history.failed) rows.push(["… served now", "–", own.served, other.served]);
  fillTable(at("side-by-side"), "Counters side by side", [["", "in the file", `replayed ${names[0]}`, `with ${names[1]}`], ...rows]);
  const same = own.counters["reserved_bytes.all.peak"] === history.peak_reserved && own.failed === history.failed;
  at("trust").textContent = same
    ? "Replayed as it was, it has the file's peak of reserved memory and its failures."
    : "Replayed as it was, it differs from the file: the card's size, what came before, or other libraries are not as they were.";
  drawCurves(own, other, names);
  const maps = at("replay-maps");
  maps.replaceChildren();
  [own, other].forEach((played, number) => {
    const place = element("div", { cls: "map" });
    const text = element("p", { cls: "selected" });
    maps.append(element("h3", { text: `${names[number]}: ${played.moment}` }));
    if (played.failure) maps.append(element("pre", { cls: "oom", text: played.failure }));
    maps.append(place, text);
    const chosen = (block) => {
      text.textContent = `A block of ${exact(block.size)}, ${block.requested ? `${exact(block.requested)} asked for` : "free"}.`;
    };
    drawMap(place, played.segments, { chosen, key: `r${number}-` });
  });
}

function drawCurves(own, other, names) {
  const [width, height, margin] = [Math.max(300, Math.min(960, at("results").clientWidth)), 240, 62];
  const last = own.curve.at(-1)[0];
  const top = Math.max(1, ...own.curve.concat(other.curve).flatMap(([, allocated, reserved]) => [allocated, reserved]));
  const x = (events) => margin + ((width - margin - 5) * events) / last;
  const y = (bytes) => height - 20 - ((height - 35) * bytes) / top;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.style.maxWidth = `${width}px`;
  const line = (curve, which, cls) => {
    const path = document.createElementNS(svg.namespaceURI, "path");
    const steps = curve.map((point) => `H${x(point[0]).toFixed(1)}`).map((go, i) => `V${y(curve[i][which]).toFixed(1)}${go}`);
    path.setAttribute("d", `M${margin},${y(0)}${steps.join("")}`);
    path.setAttribute("class", cls);
    svg.append(path);
  };
  for (const bytes of [0, top / 2, top]) {
    const text = document.createElementNS(svg.namespaceURI, "text");
    text.setAttribute("x", margin - 5);
    text.setAttribute("y", y(bytes) + 4);
    text.setAttribute("class", "tick");
    text.textContent = size(bytes);
    svg.append(text);
  }
  line(own.curve, 1, "curve-allocated");
  line(own.curve, 2, "curve-own");
  line(other.curve, 2, "curve-other");
  const peaks = [own, other].map((played) => mib(played.counters["reserved_bytes.all.peak"]));
  svg.setAttribute("aria-label",
    `Memory over ${last.toLocaleString("en")} requests and frees. Reserved peaks at ${peaks[0]} ${names[0]}, ` +
    `and at ${peaks[1]} with ${names[1]}; allocated at ${mib(own.counters["allocated_bytes.all.peak"])}.`);
  at("curves").replaceChildren(svg);
  const keys = [["curve-allocated", `allocated, ${names[0]}`], ["curve-own", `reserved, ${names[0]}`], ["curve-other", `reserved, ${names[1]}`]];
  at("curves-legend").replaceChildren(
    ...keys.map(([cls, name]) => element("span", { cls: "key" }, element("i", { cls: `swatch line ${cls}`, "aria-hidden": "true" }), name)),
    "over requests and frees",
  );
}
