"""What the page asks, and the answers: one text of JSON in, one out. It holds the game that is played.

A request is a dictionary with "do"; see `Desk`. An answer has "ok"; if that is false, "error" says what was wrong, and
nothing was done.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from simgpu.allocator import snapshot as snapshots
from simgpu.gpus.specs import SPECS
from simgpu.report import sizes
from tools.playground import replay, state
from tools.playground.game import KINDS, Card, Playground, Refused
from tools.playground.tasks import TASKS, Task

MIB = 2**20
FIRST_CARD = Card(2048 * MIB)
MOST_EVENTS = 2_000_000
"""A longer history is refused: a browser would take minutes."""


class Desk:
    """One page's game. Each `_name` method answers the request whose "do" is that name."""

    def __init__(self) -> None:
        self.game = Playground(FIRST_CARD)
        self.task: Task | None = None
        self.steps: tuple[replay.History, ...] = ()
        self.snapshot: dict | None = None

    def answer(self, text: str) -> str:
        """The answer to a request, both JSON. Raises nothing for what a reader types."""
        request = json.loads(text)
        try:
            found = getattr(self, f"_{request['do']}")(request)
        except (Refused, snapshots.SnapshotError) as error:
            return json.dumps({"ok": False, "error": str(error)})
        except MemoryError:
            return json.dumps({"ok": False, "error": "the browser has not enough memory for this"})
        return json.dumps({"ok": True, **found})

    # The game.

    def _hello(self, request: dict) -> dict:
        """What the page needs once: cards, tasks, and the first state."""
        cards = [{"key": spec.key, "total": spec.total_memory, "context": spec.context} for spec in SPECS.values()]
        tasks = [
            {"key": task.key, "chapter": task.chapter, "title": task.title, "goal": task.goal, "hint": task.hint}
            for task in TASKS
        ]
        return {"cards": cards, "tasks": tasks, "state": self._state()}

    def _new(self, request: dict) -> dict:
        """A new game: on a "card" by its name, or of "total" bytes; with "allowed", "settings"; or of a "task"."""
        settings = str(request.get("settings") or "")
        if request.get("task"):
            task = next((one for one in TASKS if one.key == request["task"]), None)
            if task is None:
                raise Refused(f"got the task {request['task']!r}, wanted one of {', '.join(one.key for one in TASKS)}")
            if settings and task.allowed:
                raise Refused("this task is played with PyTorch's default settings")
            self.game, self.task = task.start(settings), task
        else:
            self.game, self.task = Playground(self._card(request), settings), None
        return {"state": self._state()}

    @staticmethod
    def _card(request: dict) -> Card:
        known = {spec.key: spec for spec in SPECS.values()}
        name, total = request.get("card"), request.get("total")
        if name:
            if name not in known:
                raise Refused(f"got the card {name!r}, wanted one of {', '.join(known)}")
            card = Card(known[name].total_memory, known[name].context)
        else:
            card = Card(_bytes(total, "the card's memory"))
        allowed = request.get("allowed")
        return Card(card.total, card.context, _bytes(allowed, "what is allowed")) if allowed else card

    def _move(self, request: dict) -> dict:
        """Make the "move"."""
        move = request["move"]
        told = self.task.move(self.game, move) if self.task is not None else self.game.move(move)
        return {"told": state.told(told), "state": self._state()}

    def _undo(self, request: dict) -> dict:
        """Take the last move back."""
        return {"undone": self.game.undo().text, "state": self._state()}

    def _show(self, request: dict) -> dict:
        """Begin the task again, and make its solution's moves."""
        if self.task is None:
            raise Refused("there is no task to be shown: choose one first")
        self.game = self.task.start(self.task.solution_settings)
        for move in self.task.solution:
            self.task.move(self.game, move)
        return {"state": self._state()}

    def _state(self) -> dict:
        found = state.whole(self.game)
        if self.task is not None:
            solved, said = self.task.judge(self.game)
            found["task"] = {
                "key": self.task.key,
                "solved": solved,
                "said": said,
                "why": self.task.why if solved else "",
                "left": self.task.left(self.game),
                "kinds": list(self.task.allowed),
            }
        else:
            found["task"] = {"key": "", "solved": False, "said": "", "why": "", "left": None, "kinds": list(KINDS)}
        return found

    # A snapshot.

    def _snapshot(self, request: dict) -> dict:
        """Read the snapshot at "path", whose name for readers is "name"."""
        path = Path(request["path"])
        try:
            found = snapshots.read(path)
            numbers = replay.devices(found)
        except snapshots.SnapshotError as error:
            raise snapshots.SnapshotError(str(error).replace(str(path), str(request.get("name") or "file"))) from None
        self.snapshot = found
        return {"devices": numbers, **self._look(numbers[0])}

    def _device(self, request: dict) -> dict:
        """Look at another GPU's history of the snapshot that was read: "device"."""
        return self._look(int(request["device"]))

    def _look(self, device: int) -> dict:
        if self.snapshot is None or device not in replay.devices(self.snapshot):
            raise Refused(f"there is no history of GPU {device}: read a snapshot first")
        one = replay.history(self.snapshot, device)
        if len(one.steps) > MOST_EVENTS:
            raise Refused(f"the history has {len(one.steps):,} steps, and at most {MOST_EVENTS:,} are replayed here")
        self.steps = (one,)
        about = {key: value for key, value in asdict(one).items() if key != "steps"}
        return {"history": {**about, "version": ".".join(map(str, one.version)), "notes": replay.notes(one)}}

    def _replay(self, request: dict) -> dict:
        """Replay the history under "settings", on a card of "total" bytes."""
        if not self.steps:
            raise Refused("there is no history: read a snapshot first")
        total = _bytes(request.get("total"), "the card's memory")
        return {"played": asdict(replay.play(self.steps[0], str(request.get("settings") or ""), total))}


def _bytes(size: object, what: str) -> int:
    try:
        return sizes.parse(size if isinstance(size, int) else str(size or ""))
    except ValueError as error:
        raise Refused(f"{what}: {error}") from None
