// Answers from DATA (data.js): tables that `simgpu fit` computed. A cell holds three capacities in bytes: what is
// allocated, the smallest on which a step succeeded, and what is reserved. A batch between two computed ones gets the range
// from what the smaller one allocates to what the larger one reserves.
"use strict";

const element = (id) => document.getElementById(id);
const GIB = 2 ** 30;
let own = null; // the reader's own config.json, once it was read

// The answer for one choice: {low, high} in bytes on the base GPU and its explanation; null where there is none.
function answer(choice) {
  if (choice.model === "own") return estimate(own, choice);
  const known = computed(choice);
  const tokens = choice.length * choice.batch;
  const below = known.filter((one) => one.tokens <= tokens).at(-1);
  const above = known.find((one) => one.tokens >= tokens);
  if (below === undefined || above === undefined) return null;
  const exact = below.tokens === tokens;
  const low = exact ? below.smallest[0] : below.allocated;
  const high = exact ? below.smallest[1] : Math.max(below.smallest[1], above.reserved);
  return { low: low * (1 - known.error), high: high * (1 + known.error), words: explained(choice, below, above, known.error) };
}

// What was computed for a model, a plan and a number of GPUs, by the tokens of a batch: of this length, or if it was not
// computed, of all lengths. `error` is then the largest share by which cells of equally many tokens differ.
const found = new Map();
function computed({ model, plan, gpus, length }) {
  const lengths = DATA.models[model].lengths;
  const of = lengths.includes(length) ? [length] : lengths;
  const key = [model, plan, gpus, of].join(" ");
  if (!found.has(key)) found.set(key, byTokens(model, plan, gpus, of));
  return found.get(key);
}

function byTokens(model, plan, gpus, lengths) {
  const known = {};
  for (const [length, batch] of lengths.flatMap((one) => DATA.batches.map((batch) => [one, batch]))) {
    const cell = DATA.cells[[model, plan, gpus, length, batch].join(" ")];
    if (cell) (known[length * batch] ??= []).push(cell);
  }
  const rows = Object.entries(known).map(([tokens, cells]) => {
    const [allocated, smallest, reserved] = [0, 1, 2].map((at) => cells.map((cell) => cell[at]));
    return { tokens: Number(tokens), allocated: Math.min(...allocated), reserved: Math.max(...reserved),
      smallest: [Math.min(...smallest), Math.max(...smallest)] };
  });
  rows.sort((one, other) => one.tokens - other.tokens);
  rows.error = lengths.length > 1 ? DATA.same_tokens : 0;
  return rows;
}

function mostBatches(choice) {
  const known = choice.model === "own" ? [] : computed(choice);
  const most = known.length ? known.at(-1).tokens : DATA.most_tokens;
  return Math.min(DATA.batches.at(-1), Math.floor(most / choice.length));
}

// What a card has to spare for an answer, in bytes: {low, high}, and "yes", "no" or "close".
function onCard(card, found) {
  const low = card.total - found.high - card.difference[1];
  const high = card.total - found.low - card.difference[0];
  const verdict = low >= DATA.uncertainty ? "yes" : high < -DATA.uncertainty ? "no" : "close";
  return { low, high, verdict };
}

// The largest batch that fits for certain, and the largest that may fit, as far as no smaller one is too large.
function largestBatch(card, choice) {
  const most = mostBatches(choice);
  const verdicts = Array.from({ length: most }, (_, index) => {
    const known = answer({ ...choice, batch: index + 1 });
    return known ? onCard(card, known).verdict : "no";
  });
  const certain = verdicts.lastIndexOf("yes") + 1;
  const next = verdicts.indexOf("no", certain);
  const possible = next < 0 ? most : next;
  if (certain === most) return `${most} or more`;
  if (certain === possible) return certain ? String(certain) : "none";
  return certain ? `${certain} to ${possible}` : `at most ${possible}`;
}

const gib = (bytes) => (bytes / GIB).toFixed(Math.abs(bytes) < 10 * GIB ? 2 : 1).replace("-", "\u2212");
const range = (low, high) => gib(low) === gib(high) ? gib(low) : `${gib(low)} to ${gib(high)}`;

// What is to spare, in GiB. The verdict allows for an uncertainty of 0.1 GiB, so one digit is enough.
function spared({ low, high }) {
  const [least, most] = [low, high].map((bytes) => (bytes / GIB).toFixed(1).replace("-0.0", "0.0").replace("-", "\u2212"));
  return least === most ? least : `${least} to ${most}`;
}

// The controls

function models() {
  const known = Object.entries(DATA.models).map(([key, model]) => [key, model.name]);
  return own ? [...known, ["own", `${own.name} (your own)`]] : known;
}

// All lengths from the shortest computed one to the longest, each twice the one before.
function lengthsOf(model) {
  const computed = model === "own" ? DATA.lengths : DATA.models[model].lengths;
  const lengths = [computed[0]];
  while (lengths.at(-1) < computed.at(-1)) lengths.push(2 * lengths.at(-1));
  return lengths;
}

function options(select, entries, wanted) {
  select.replaceChildren(...entries.map(([value, words]) => new Option(words, value)));
  const values = entries.map(([value]) => String(value));
  select.value = values.includes(String(wanted)) ? String(wanted) : values[0];
}

function read() {
  const model = element("model").value;
  return { model, plan: element("plan").value, gpus: Number(element("gpus").value), card: element("card").value,
    length: lengthsOf(model)[element("length").value], batch: Number(element("batch").value) };
}

// Fills the controls for a choice, as far as the model has it, and shows the answer.
function choose(choice) {
  options(element("model"), models(), choice.model);
  options(element("plan"), Object.entries(DATA.plans).map(([key, plan]) => [key, plan.words]), choice.plan);
  options(element("gpus"), DATA.gpus.map((one) => [one, one]), choice.gpus);
  options(element("card"), [["", "all of them"], ...DATA.cards.map(({ name }) => [name, name])], choice.card);
  const lengths = lengthsOf(element("model").value);
  element("length").max = lengths.length - 1;
  element("length").value = Math.max(0, lengths.findLastIndex((one) => one <= choice.length));
  const most = mostBatches(read());
  element("batch").max = most;
  element("batch").value = Math.min(choice.batch, most);
  show();
}

function show() {
  const choice = read();
  element("length-value").textContent = `${choice.length.toLocaleString("en")} tokens`;
  element("batch-value").textContent = choice.batch === 1 ? "1 sequence" : `${choice.batch} sequences`;
  const known = answer(choice);
  element("needs").textContent = known ? needs(choice, known) : "No answer here for this choice";
  element("how").textContent = known ? known.words : missing(choice);
  element("table").hidden = !known;
  element("cards").replaceChildren(...known ? DATA.cards.map((card) => row(card, known, choice)) : []);
  showCommand(choice, known);
  if (choice.model !== "own") history.replaceState(null, "", `#${new URLSearchParams(choice)}`);
}

// The answer in a sentence, for the card that was chosen if one was.
function needs(choice, known) {
  const several = choice.gpus > 1;
  const step = `A step needs ${range(known.low, known.high)} GiB${several ? " on each GPU" : ""}`;
  const card = DATA.cards.find(({ name }) => name === choice.card);
  if (!card) return step;
  const spare = onCard(card, known);
  const which = several ? `${choice.gpus} × ${card.name}` : card.name;
  const verdicts = { yes: `fits on ${which}, with ${spared(spare)} GiB to spare`,
    no: `does not fit on ${which}, by ${spared({ low: -spare.high, high: -spare.low })} GiB`,
    close: `too close to call on ${which}, with ${spared(spare)} GiB to spare` };
  return `${step}: ${verdicts[spare.verdict]}`;
}

// Why there is no answer, and for which choices there is one.
function missing({ model, plan, gpus }) {
  const has = (one, number) => model === "own" ? DATA.estimates.ways[way(one, number)]
    : DATA.models[model].plans.includes(one) && DATA.plans[one].gpus.includes(number);
  const plans = Object.keys(DATA.plans).filter((one) => has(one, gpus)).map((one) => `\u201c${DATA.plans[one].words}\u201d`);
  const name = model === "own" ? own.name : DATA.models[model].name;
  const what = model === "own" ? "no formula for it was compared with simulations" : "it was not computed in advance";
  const instead = plans.length ? ` For ${name} on ${gpus === 1 ? "1 GPU" : `${gpus} GPUs`} this page has: ${plans.join("; ")}.` : "";
  return `The page has no figures for \u201c${DATA.plans[plan].words}\u201d on ${gpus === 1 ? "1 GPU" : `${gpus} GPUs`}, because ${what}. `
    + `The command below computes it.${instead}`;
}

function explained(choice, below, above, error) {
  const { name } = DATA.models[choice.model];
  const simulated = `Simulated on an ${DATA.base} with unlimited memory, for ${name}`;
  const tokens = choice.length * choice.batch;
  if (below.tokens === tokens && !error) return `${simulated}.`;
  const same = error ? ` Sequences of ${choice.length.toLocaleString("en")} tokens were not computed, but batches with as many tokens in `
    + `shorter or longer sequences were. Among those, the length changed the answer by at most ${(100 * error).toFixed(1)} %.` : "";
  if (below.tokens === tokens) return `${simulated}.${same}`;
  const [fewer, more] = [below, above].map((one) => (one.tokens / choice.length).toLocaleString("en"));
  return `${simulated}. A batch of ${choice.batch} was not computed, so this is the range from what a batch of ${fewer} allocates to `
    + `what ${more} reserves.${same}`;
}

function row(card, known, choice) {
  const spare = onCard(card, known);
  const line = document.createElement("tr");
  line.className = card.name === choice.card ? `${spare.verdict} chosen` : spare.verdict;
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
  const name = choice.gpus > 1 ? `${choice.gpus} × ${card.name}` : card.name;
  const cells = [name, bar, spared(spare), words, largestBatch(card, choice)];
  line.append(...cells.map((content, index) => {
    const made = document.createElement(index === 0 ? "th" : "td");
    made.className = ["", "bar-cell", "number", "verdict", "number"][index];
    made.append(content);
    return made;
  }));
  return line;
}

function showCommand(choice, known) {
  const fits = known && DATA.cards.find((one) => onCard(one, known).verdict === "yes");
  const card = choice.card || (fits || DATA.cards.at(-1)).name;
  const ranks = choice.gpus > 1 ? ` --ranks ${choice.gpus}` : "";
  const sizes = `--batch ${choice.batch} --length ${choice.length}`;
  const name = card.includes(" ") ? `"${card}"` : card;
  element("command").textContent = `simgpu fit config.json --gpu ${name} ${DATA.plans[choice.plan].options} ${sizes}${ranks}`;
  element("copied").textContent = "";
  element("config").hidden = choice.model === "own";
}

async function copyCommand() {
  try {
    await navigator.clipboard.writeText(element("command").textContent);
    element("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(element("command"));
    element("copied").textContent = "This browser does not allow it, so the command is selected for you to copy.";
  }
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
  const first = { model: "llama-3-8b", plan: "lora", gpus: 1, card: "", length: 2048, batch: 1 };
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
  element("copy").addEventListener("click", copyCommand);
  element("config").addEventListener("click", saveConfig);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  element("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset;
    theme.theme = theme.theme === "dark" ? "light" : "dark";
  });
}

start();
