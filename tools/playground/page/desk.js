// The way to Python: one request at a time, answered in the order in which they were made.
const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
let last = 0;
let settle;

export const ready = new Promise((resolve, reject) => {
  settle = { resolve, reject };
});

worker.onmessage = ({ data }) => {
  if ("ready" in data) {
    if (data.ready) settle.resolve();
    else settle.reject(new Error(data.error));
    return;
  }
  waiting.get(data.id)(JSON.parse(data.answer));
  waiting.delete(data.id);
};
worker.onerror = (event) => settle.reject(new Error(event.message || "the worker could not be loaded"));

/** Python's answer to a request, an object with `ok`; `file` is an ArrayBuffer that goes with it. */
export function ask(request, file) {
  return new Promise((resolve) => {
    waiting.set(++last, resolve);
    worker.postMessage({ id: last, request, file }, file ? [file] : []);
  });
}
