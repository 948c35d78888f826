// The estimate for a reader's own config.json: the sums of tools/calculator/estimates.py, times the range of its error.
"use strict";

const NEEDED = ["num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"];

// A config.json's content as an object with a name. Throws an Error that says what was given and what was wanted.
function described(name, text) {
  let config;
  try {
    config = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name} is not JSON (${error.message}); wanted a model's config.json.`);
  }
  const types = DATA.estimates.types;
  if (!config || !types.includes(config.model_type)) {
    const given = config && config.model_type ? `the model type "${config.model_type}"` : "no model_type";
    throw new Error(`${name} has ${given}; this page can estimate ${types.join(", ")}. `
      + "The command simgpu fit config.json computes every model of transformers.");
  }
  const wrong = NEEDED.find((field) => !Number.isInteger(config[field]) || config[field] < 1);
  if (wrong) throw new Error(`${name} has ${wrong} = ${JSON.stringify(config[wrong])}; wanted a whole number of 1 or more.`);
  return { name, config };
}

// A plan on a number of GPUs, as estimates.py names it.
const way = (plan, gpus) => gpus === 1 ? plan : `${plan} on ${gpus}`;

// The quantities on which the estimate depends, as `features` in estimates.py.
function features(config, tokens, gpus) {
  const { num_hidden_layers: layers, hidden_size: hidden, intermediate_size: inner, num_attention_heads: heads } = config;
  const vocabulary = config.vocab_size;
  const head = config.head_dim || Math.floor(hidden / heads);
  const queries = heads * head;
  const keys = (config.num_key_value_heads || heads) * head;
  const biases = config.model_type === "qwen2" ? queries + 2 * keys : 0;
  const layer = 2 * hidden * (queries + keys) + 3 * hidden * inner + 2 * hidden + biases;
  const tables = config.tie_word_embeddings ? 1 : 2;
  const outside = hidden + tables * vocabulary * hidden;
  const parameters = layers * layer + outside;
  const known = { parameters, shard: parameters / gpus, layer, outside, "token vocabulary": tokens * vocabulary };
  for (const [name, size] of Object.entries({ hidden, inner, queries, keys })) {
    known[`token layer ${name}`] = tokens * layers * size;
    known[`token ${name}`] = tokens * size;
  }
  return known;
}

function estimatedPeak(config, plan, gpus, tokens) {
  const known = features(config, tokens, gpus);
  const sums = DATA.estimates.ways[way(plan, gpus)].rows.map((row) =>
    Object.entries(row).reduce((sum, [name, bytes]) => sum + bytes * known[name], 0));
  return Math.max(...sums);
}

// The answer for the reader's own model, a range in bytes; null without a formula for the choice.
function estimate(own, choice) {
  const known = DATA.estimates.ways[way(choice.plan, choice.gpus)];
  if (!known) return null;
  const peak = estimatedPeak(own.config, choice.plan, choice.gpus, choice.length * choice.batch);
  const { low, high } = known;
  const context = DATA.estimates.context;
  const { parameters } = features(own.config, 1, 1);
  const [least, most] = DATA.estimates.between;
  const outside = parameters < least || parameters > most
    ? ` These had ${least / 1e9} to ${most / 1e9} billion parameters, so the range may be wrong here.` : "";
  return { low: peak * low + context, high: peak * high + context,
    words: `An estimate for ${(parameters / 1e9).toFixed(2)} billion parameters: a formula's peak of ${gib(peak)} GiB, times `
      + `${low.toFixed(2)} to ${high.toFixed(2)}, plus the CUDA context. These factors are the range of `
      + `${known.fitted} random configurations that were simulated.${outside} The command below computes it exactly.` };
}
