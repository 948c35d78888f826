"""Drives a headless Chromium over its DevTools protocol: opens a page, evaluates, presses keys, notes what it says."""

from __future__ import annotations

import base64
import functools
import http.server
import itertools
import json
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FOUND = next(filter(None, map(shutil.which, NAMES)), None)
"""Chromium's program, or None where there is none."""

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


class Server:
    """`python -m http.server` on a free port of this machine, for a folder."""

    def __init__(self, folder: Path) -> None:
        handler = functools.partial(Quiet, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Chromium:
    """One page in a browser of its own. `said` holds errors and warnings of the console, `requested` the addresses that
    were asked for, both of the page and of its workers; `workers` are the workers' sessions."""

    def __init__(self, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        import websocket

        assert FOUND is not None
        self.profile = tempfile.mkdtemp()
        flags = [
            *FLAGS,
            f"--window-size={width},{height}",
            f"--user-data-dir={self.profile}",
            "--remote-debugging-port=0",
        ]
        self.process = subprocess.Popen(
            [FOUND, *flags, "--remote-debugging-port=0", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port = self._port()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=600) as answer:
            pages = [page for page in json.load(answer) if page["type"] == "page"]
        self.socket = websocket.create_connection(
            pages[0]["webSocketDebuggerUrl"], timeout=600, suppress_origin=True, max_size=None
        )
        self.numbers = itertools.count(1)
        self.said: list[str] = []
        self.requested: list[str] = []
        self.workers: list[str] = []  # their sessions
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")
        # Workers are targets of their own; their requests count, too.
        self.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True)
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.resize(width, height)
        self.dark(dark)

    def _port(self) -> int:
        written = Path(self.profile) / "DevToolsActivePort"
        for _ in range(12000):
            if written.exists() and (lines := written.read_text().splitlines()):
                return int(lines[0])
            assert self.process.poll() is None, "Chromium ended at once"
            time.sleep(0.05)
        raise TimeoutError("Chromium did not say its port")

    def call(self, method: str, session: str | None = None, **parameters) -> dict:
        """Call a method of the protocol."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        self.socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._noted(answer.get("method", ""), answer.get("params", {}))

    def _noted(self, event: str, found: dict) -> None:
        if event == "Target.attachedToTarget":
            self.workers.append(found["sessionId"])
            for domain in ("Network", "Runtime", "Log"):
                number = next(self.numbers)
                message = {"id": number, "method": f"{domain}.enable", "sessionId": found["sessionId"]}
                self.socket.send(json.dumps(message))
        elif event == "Network.requestWillBeSent":
            self.requested.append(found["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            details = found["exceptionDetails"]
            self.said.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning", "assert"):
            self.said.append(" ".join(str(one.get("value", one.get("description"))) for one in found["args"]))
        elif event == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.said.append(found["entry"]["text"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str, session: str | None = None):
        """The value of a JavaScript expression, in the page or in a worker; a promise is waited for."""
        answer = self.call("Runtime.evaluate", session, expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 600) -> float:
        """Wait until an expression is true; how long it took, in seconds. Raises TimeoutError."""
        began = time.monotonic()
        while not self.evaluate(expression):
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"{expression} is not so after {seconds} s; the console says {self.said}")
            time.sleep(0.05)
        return time.monotonic() - began

    def press(self, key: str, code: int = 0, text: str = "", modifiers: int = 0) -> None:
        """Press and release a key by its name."""
        common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Type a text into what has the focus."""
        self.call("Input.insertText", text=text)

    def choose_file(self, selector: str, path: Path) -> None:
        """Give a file to an `<input type="file">`."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, wanted: bool) -> None:
        """What the system is said to prefer."""
        value = "dark" if wanted else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def picture(self, path: Path) -> None:
        """The whole page, as a PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(30)
        shutil.rmtree(self.profile, ignore_errors=True)
