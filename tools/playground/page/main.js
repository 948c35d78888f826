// The page: what the reader does becomes a request, and what Python answers is shown.
import { ask, ready } from "./desk.js";
import { drawMap, inWords, kindOf } from "./map.js";
import { startReplay } from "./replay.js";
import { element, say, size } from "./text.js";
import { drawCard, drawCounters, drawMoves } from "./views.js";

const at = (id) => document.getElementById(id);
const ERRORS = ["size-error", "move-error", "settings-error"];
const LEGEND = [
  ["allocated", "allocated"],
  ["slack-key", "rounding, or too little to split off"],
  ["whole", "free: empty_cache returns it"],
  ["split", "free, but in a segment in use (inactive split)"],
];
let tasks = [];
let state = null;

// Moves.

async function send(request, errorPlace) {
  const answer = await ask(request);
  for (const place of ERRORS) say(place, "");
  if (answer.ok) show(answer.state, answer);
  else say(errorPlace, answer.error);
  return answer;
}

const move = (made, errorPlace = "move-error") => send({ do: "move", move: made }, errorPlace);

async function askFor(count) {
  const made = { do: "ask", size: at("size").value, name: at("name").value, count };
  const answer = await move(made, "size-error");
  if (answer.ok) at("name").value = "";
  at("size").select();
}

function show(found, { told, undone } = {}) {
  state = found;
  drawCard(at("card-bar"), found.card);
  drawCounters(found.counters);
  drawMoves(found);
  drawBlocks();
  const latest = told || (undone ? null : found.moves.at(-1));
  at("said").textContent = undone ? `Taken back: ${undone}.` : latest ? `${latest.text}: ${latest.said.join(" ")}` : "";
  say("oom", latest?.error);
  at("name").placeholder = found.next_name;
  at("settings-now").textContent = `In force: ${found.settings.text || "PyTorch's defaults"}.`;
  at("selected").textContent = at("selected").dataset.help;
  at("undo").disabled = found.made === 0;
  const names = found.segments.flatMap((segment) => segment.blocks.map((block) => block.name.replace(/\[\d+\]$/, "")));
  at("names").replaceChildren(...[...new Set(names)].filter(Boolean).sort().map((name) => new Option(name)));
  showTask(found.task);
}

function drawBlocks() {
  drawMap(at("map"), state.segments, { chosen, remove: (block) => move({ do: "free", name: block.name }) });
}

function chosen(block, segment) {
  const place = at("selected");
  const where = `${segment.pool} pool, address 0x${block.address.toString(16)}`;
  place.replaceChildren(`${inWords(block, segment)} (${where}). `);
  if (kindOf(block, segment)[0] !== "allocated") return;
  for (const name of new Set([block.name, block.name.replace(/\[\d+\]$/, "")])) {
    const all = name !== block.name;
    const button = element("button", { type: "button", text: all ? `Free all of ${name}` : `Free ${name}` });
    button.onclick = () => move({ do: "free", name });
    place.append(button, " ");
  }
}

// Tasks, cards, settings.

function showTask(task) {
  const known = tasks.find((one) => one.key === task.key);
  at("task").value = task.key;
  at("task-box").hidden = !known;
  if (!known) return;
  at("goal").textContent = known.goal;
  at("hint").textContent = known.hint;
  const left = task.left ? ` Moves left: ${task.left}.` : "";
  const verdict = at("verdict");
  verdict.classList.toggle("solved", task.solved);
  verdict.textContent = task.solved ? `Solved: ${task.said}. ${task.why}` : `Not yet: ${task.said}.${left}`;
}

const startTask = (key, more = {}) => send({ do: "new", task: key, ...more }, "move-error");

function startAgain() {
  const settings = at("settings").value;
  const task = state.task;
  if (task.key && task.kinds.length === 0) return startTask(task.key, { settings });
  const card = at("card").value;
  const allowed = at("allowed").value.trim();
  return send({ do: "new", card, total: at("total").value, allowed, settings }, "settings-error");
}

function fill(hello) {
  for (const card of hello.cards) at("card").append(new Option(`${card.key}: ${size(card.total)}`, card.key));
  tasks = hello.tasks;
  for (const task of tasks) at("task").append(new Option(`${task.chapter} · ${task.title}`, task.key));
  for (const [cls, name] of LEGEND) {
    at("legend").append(element("span", { cls: "key" }, element("i", { cls: `swatch ${cls}`, "aria-hidden": "true" }), name));
  }
  at("selected").dataset.help = at("selected").textContent;
}

function connect() {
  at("ask").onsubmit = (event) => {
    event.preventDefault();
    askFor(at("count").value);
  };
  at("free").onsubmit = async (event) => {
    event.preventDefault();
    const answer = await move({ do: "free", name: at("free-name").value });
    if (answer.ok) at("free-name").value = "";
  };
  at("fill").onclick = () => askFor("until it fails");
  at("empty").onclick = () => move({ do: "empty_cache" });
  at("peak").onclick = () => move({ do: "reset_peak" });
  at("undo").onclick = () => send({ do: "undo" }, "move-error");
  at("task").onchange = () => (at("task").value ? startTask(at("task").value) : startAgain());
  at("again").onclick = () => startTask(state.task.key);
  at("show").onclick = () => send({ do: "show" }, "move-error");
  at("card").onchange = () => {
    at("total").disabled = at("card").value !== "";
  };
  at("start").onsubmit = (event) => {
    event.preventDefault();
    startAgain();
  };
  at("change").onclick = () => move({ do: "settings", text: at("settings").value }, "settings-error");
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if ((event.ctrlKey || event.metaKey) && event.key === "z" && !typing && !at("undo").disabled) {
      event.preventDefault();
      at("undo").click();
    }
  });
  let width = at("map").clientWidth;
  new ResizeObserver(() => {
    if (at("map").clientWidth !== width) {
      width = at("map").clientWidth;
      drawBlocks();
    }
  }).observe(at("map"));
}

// Dark and light: as the rest of the site, whose choice is kept under the same name, or as the system.

function theme(chosen) {
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

function stored(value) {
  try {
    if (value) {
      localStorage.setItem("theme", value);
      localStorage.setItem("mode", value);
    }
    return localStorage.getItem("mode") === "auto" ? null : localStorage.getItem("theme");
  } catch {
    return value; // a browser that keeps nothing
  }
}

theme(stored());
at("theme").onclick = () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  stored(next);
  theme(next);
};

async function start() {
  try {
    await ready;
    const hello = await ask({ do: "hello" });
    fill(hello);
    connect();
    startReplay();
    show(hello.state);
    for (const fieldset of document.querySelectorAll("fieldset")) fieldset.disabled = false;
    at("undo").disabled = true;
    say("status", "");
    const task = new URLSearchParams(location.search).get("task"); // a chapter's link leads to its task
    if (task) await startTask(task);
    document.body.dataset.ready = "true";
  } catch (error) {
    at("status").classList.add("error");
    say("status", `Python could not be loaded: ${error.message}. The page must come from a web server (python -m http.server).`);
  }
}

window.playground = { ask, send }; // for whoever wants to play by program
start();
