// Python in a worker: loads Pyodide and the project's archive from beside this file, then answers requests in turn.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const SNAPSHOT = "/tmp/snapshot.pickle";

async function load() {
  const [pyodide, archive] = await Promise.all([
    loadPyodide({ indexURL: new URL("./pyodide/", import.meta.url).href }),
    fetch(new URL("./playground.zip", import.meta.url)).then((response) => {
      if (!response.ok) throw new Error(`playground.zip: ${response.status} ${response.statusText}`);
      return response.arrayBuffer();
    }),
  ]);
  pyodide.unpackArchive(archive, "zip", { extractDir: "/playground" });
  const desk = pyodide.runPython(
    "import sys; sys.path.insert(0, '/playground')\nfrom tools.playground.answers import Desk\nDesk()",
  );
  // All is here now. Whatever a reader drops can go nowhere.
  for (const name of ["fetch", "XMLHttpRequest", "WebSocket", "WebSocketStream", "EventSource", "WebTransport", "Worker"]) {
    Object.defineProperty(self, name, { value: undefined, writable: false, configurable: false });
  }
  return { pyodide, answer: desk.answer };
}

const python = load();
python.then(() => postMessage({ ready: true }), (error) => postMessage({ ready: false, error: String(error) }));

onmessage = async ({ data: { id, request, file } }) => {
  try {
    const { pyodide, answer } = await python;
    if (file) {
      pyodide.FS.writeFile(SNAPSHOT, new Uint8Array(file));
      request.path = SNAPSHOT;
    }
    postMessage({ id, answer: answer(JSON.stringify(request)) });
    if (file) pyodide.FS.unlink(SNAPSHOT);
  } catch (error) {
    postMessage({ id, answer: JSON.stringify({ ok: false, error: `unexpected: ${error}` }) });
  }
};
