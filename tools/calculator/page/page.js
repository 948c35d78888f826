// Answers from DATA (data.js): tables that `simgpu fit` computed. A cell holds three capacities in bytes: what is
// allocated, the smallest on which a step succeeded, and what is reserved. A batch between two computed ones gets the range
// from what the smaller one allocates to what the larger one reserves.
"use strict";

const element = (id) => document.getElementById(id);
const GIB = 2 ** 30;
let own = null; // the reader's own config.json, once it was read

// The answer for one choice: {low, high} in bytes on the base GPU and whether it is exact; null outside the tables.
function answer(choice) {
  if (choice.model === "own") return estimate(own, choice);
  const batches = computedBatches(choice);
  const below = batches.filter((one) => one <= choice.batch).at(-1);
  const above = batches.find((one) => one >= choice.batch);
  if (below === undefined || above === undefined) return null;
  const [smaller, larger] = [below, above].map((batch) => cell({ ...choice, batch }));
  if (below === above) return { low: smaller[1], high: smaller[1], exact: true };
  return { low: smaller[0], high: Math.max(smaller[2], larger[2]), exact: false, between: [below, above] };
}

const cell = (choice) => DATA.cells[[choice.model, choice.plan, choice.gpus, choice.length, choice.batch].join(" ")];

function computedBatches(choice) {
  return DATA.batches.filter((batch) => choice.model === "own"
    ? batch * choice.length <= DATA.most_tokens : cell({ ...choice, batch }) !== undefined);
}

// What a card has to spare for an answer, in bytes: {low, high}, and "yes", "no" or "close".
function onCard(card, found) {
  const low = card.total - found.high - card.difference[1];
  const high = card.total - found.low - card.difference[0];
  const verdict = low >= DATA.uncertainty ? "yes" : high < -DATA.uncertainty ? "no" : "close";
  return { low, high, verdict };
}

function largestBatch(card, choice) {
  const batches = computedBatches(choice);
  const fitting = batches.filter((batch) => {
    const found = answer({ ...choice, batch });
    return found && onCard(card, found).verdict === "yes";
  });
  if (!fitting.length) return "–";
  const largest = fitting.at(-1);
  return largest === batches.at(-1) ? `${largest} or more` : String(largest);
}

const gib = (bytes) => (bytes / GIB).toFixed(Math.abs(bytes) < 10 * GIB ? 2 : 1).replace("-", "\u2212");
const range = (low, high) => gib(low) === gib(high) ? gib(low) : `${gib(low)} to ${gib(high)}`;

// The controls

function models() {
  const known = Object.entries(DATA.models).map(([key, model]) => [key, model.name]);
  return own ? [...known, ["own", `${own.name} (your own)`]] : known;
}

const plansOf = (model) => model === "own" ? Object.keys(DATA.estimates.plans) : DATA.models[model].plans;
const lengthsOf = (model) => model === "own" ? DATA.lengths : DATA.models[model].lengths;
const gpusOf = (model, plan) => model === "own" ? [1] : DATA.plans[plan].gpus;

function options(select, entries, wanted) {
  select.replaceChildren(...entries.map(([value, words]) => new Option(words, value)));
  const values = entries.map(([value]) => String(value));
  select.value = values.includes(String(wanted)) ? String(wanted) : values[0];
}

function read() {
  const model = element("model").value;
  const plan = element("plan").value;
  return { model, plan, gpus: Number(element("gpus").value), length: lengthsOf(model)[element("length").value],
    batch: Number(element("batch").value) };
}

// Fills the controls for a choice, as far as the model has it, and shows the answer.
function choose(choice) {
  options(element("model"), models(), choice.model);
  const model = element("model").value;
  options(element("plan"), plansOf(model).map((key) => [key, DATA.plans[key].words]), choice.plan);
  const plan = element("plan").value;
  options(element("gpus"), gpusOf(model, plan).map((one) => [one, one]), choice.gpus);
  const lengths = lengthsOf(model);
  element("length").max = lengths.length - 1;
  element("length").value = Math.max(0, lengths.findLastIndex((one) => one <= choice.length));
  const most = computedBatches({ ...read(), batch: 1 }).at(-1);
  element("batch").max = most;
  element("batch").value = Math.min(choice.batch, most);
  show();
}

function show() {
  const choice = read();
  element("length-value").textContent = `${choice.length.toLocaleString("en")} tokens`;
  element("batch-value").textContent = choice.batch === 1 ? "1 sequence" : `${choice.batch} sequences`;
  const found = answer(choice);
  const each = choice.gpus > 1 ? " on each GPU" : "";
  element("needs").textContent = `A step needs ${range(found.low, found.high)} GiB${each}`;
  element("how").textContent = explained(choice, found);
  element("cards").replaceChildren(...DATA.cards.map((card) => row(card, found, choice)));
  showCommand(choice, found);
  const { model, plan, gpus, length, batch } = choice;
  if (model !== "own") history.replaceState(null, "", `#${new URLSearchParams({ model, plan, gpus, length, batch })}`);
}

function explained(choice, found) {
  if (choice.model === "own") return found.words;
  if (found.exact) return `Simulated on an ${DATA.base} with unlimited memory, for ${DATA.models[choice.model].name}.`;
  const [below, above] = found.between;
  return `A batch of ${choice.batch} was not computed, so this is the range from what a batch of ${below} allocates to what ${above} reserves.`;
}

function row(card, found, choice) {
  const spare = onCard(card, found);
  const line = document.createElement("tr");
  line.className = spare.verdict;
  const bar = document.createElement("div");
  bar.className = "bar";
  const share = (bytes) => `${Math.max(0, Math.min(100, (100 * bytes) / card.total))}%`;
  for (const [kind, bytes] of [["upto", card.total - spare.low], ["", card.total - spare.high]]) {
    const part = document.createElement("i");
    part.className = kind;
    part.style.width = share(bytes);
    bar.append(part);
  }
  bar.title = `${range(card.total - spare.high, card.total - spare.low)} of ${gib(card.total)} GiB`;
  const words = { yes: "yes", no: "no", close: "too close" }[spare.verdict];
  const cells = [card.name, bar, `${range(spare.low, spare.high)} GiB`, words, largestBatch(card, choice)];
  line.append(...cells.map((content, index) => {
    const made = document.createElement(index === 0 ? "th" : "td");
    made.className = ["", "bar-cell", "number", "verdict", "number"][index];
    made.append(content);
    return made;
  }));
  return line;
}

function showCommand(choice, found) {
  const card = DATA.cards.find((one) => onCard(one, found).verdict === "yes") || DATA.cards.at(-1);
  const ranks = choice.gpus > 1 ? ` --ranks ${choice.gpus}` : "";
  const sizes = `--batch ${choice.batch} --length ${choice.length}`;
  const name = card.name.includes(" ") ? `"${card.name}"` : card.name;
  element("command").textContent = `simgpu fit config.json --gpu ${name} ${DATA.plans[choice.plan].options} ${sizes}${ranks}`;
  element("exactly").textContent = "This command runs the training step on a simulated GPU, on a machine without one. "
    + "Its page also says what the memory is made of.";
  element("config").hidden = choice.model === "own";
}

function saveConfig() {
  const text = JSON.stringify(DATA.models[element("model").value].config, null, 2);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "config.json";
  link.click();
  URL.revokeObjectURL(link.href);
}

// The reader's own config.json

async function readFile(file) {
  const problem = element("file-error");
  problem.hidden = true;
  try {
    own = described(file.name, await file.text());
    choose({ ...read(), model: "own" });
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  }
}

// Shows the choice that the address names, such as #model=gpt2&batch=8.
function chooseFromAddress() {
  const from = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const first = { model: "llama-3-8b", plan: "lora", gpus: 1, length: 2048, batch: 1 };
  choose({ ...first, ...from, length: Number(from.length) || first.length, batch: Number(from.batch) || first.batch });
}

function start() {
  chooseFromAddress();
  addEventListener("hashchange", chooseFromAddress);
  element("provenance").textContent = `Computed with simgpu and torch ${DATA.torch}.`;
  element("form").addEventListener("input", (event) => event.target.id !== "file" && choose(read()));
  element("form").addEventListener("submit", (event) => event.preventDefault());
  element("file").addEventListener("change", () => element("file").files.length && readFile(element("file").files[0]));
  const drop = element("drop");
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files.length) readFile(event.dataTransfer.files[0]);
  });
  element("copy").addEventListener("click", () => navigator.clipboard?.writeText(element("command").textContent));
  element("config").addEventListener("click", saveConfig);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  element("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset;
    theme.theme = theme.theme === "dark" ? "light" : "dark";
  });
}

start();
