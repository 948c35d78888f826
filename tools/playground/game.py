"""A card, an allocator, and the moves that were made on it: ask, free, empty the cache, change a setting, undo."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from simgpu.allocator.caching import Block, CachingAllocator, OutOfMemory
from simgpu.allocator.out_of_memory import InvalidFree
from simgpu.allocator.physical import Device
from simgpu.allocator.settings import AllocatorSettings, SettingsError
from simgpu.report import sizes
from tools.playground import telling

MOST_BLOCKS = 10_000
"""As many blocks may live at once: a page with more of them can neither be drawn nor read."""

NAME = re.compile(r"[A-Za-z_]\w{0,19}")
ONE_OF_MANY = re.compile(r"([A-Za-z_]\w*)\[(\d+)\]")
ANY_COUNT = "until it fails"
KINDS = ("ask", "free", "empty_cache", "reset_peak", "settings")


class NotASegment(RuntimeError):
    """PyTorch gives a piece of a segment to cudaFree: max_split_size_mb was lowered after a larger block had been cut,
    and then that block's free rest is taken for a whole segment (`release_available_cached_blocks`)."""

    def __str__(self) -> str:
        return (
            "CUDA error: invalid argument. (max_split_size_mb was set after larger blocks had been cut. PyTorch takes "
            "what is left of one for a whole segment, and hands it to cudaFree, which refuses it.)"
        )


Move = Mapping[str, object]
"""What is done, under "do": one of `KINDS`. "ask" has "size", and may have "name" and "count" (a number, or "until it
fails"); "free" has "name"; "settings" has "text"."""


class Refused(ValueError):
    """A move that cannot be made: nothing was done. The message says what was given and what was wanted."""


@dataclass(frozen=True)
class Card:
    """A GPU's memory in bytes: `total`, of which CUDA's `context` takes some; `allowed` is what this process may take
    for PyTorch (`torch.cuda.set_per_process_memory_fraction`), or None for all."""

    total: int
    context: int = 0
    allowed: int | None = None


@dataclass
class Told:
    """A move that was made: what it did, in sentences, and the line of PyTorch that does the same.

    `error`: the text of the out-of-memory error, or of the setting's, that it ended with.
    """

    move: dict
    text: str
    code: str
    said: list[str] = field(default_factory=list)
    error: str | None = None


class Playground:
    """An allocator on a card, and what lives on it by name.

    `settings` is the text of PYTORCH_ALLOC_CONF at the start; the moves of `setup` are made first, and cannot be
    undone. Raises `Refused` for a card without room for its context, for a text that PyTorch refuses, with its words,
    and for a move of `setup` that cannot be made.
    """

    def __init__(self, card: Card, settings: str = "", setup: Iterable[Move] = ()) -> None:
        self.card, self.start_settings, self.setup = card, settings, tuple(dict(move) for move in setup)
        self.made: list[Told] = []
        self.before: list[Told] = []
        self._begin()

    def _begin(self) -> None:
        card = self.card
        try:
            settings = AllocatorSettings.parse(self.start_settings)
            device = Device(card.total, card.context)
        except (ValueError, NotImplementedError) as error:
            raise Refused(str(error)) from None
        self.allocator = CachingAllocator(device, settings)
        if card.allowed is not None:
            if not 0 < card.allowed <= card.total:
                raise Refused(f"allowed: got {telling.exact(card.allowed)}, wanted at most the card's memory")
            self.allocator.set_memory_fraction(card.allowed / card.total)
        # The history tells what a move did. Its length must fit 32 bits, which is what a browser's Python has.
        self.allocator.record_history(context=None, max_entries=2**24)
        self.blocks: dict[str, list[Block | None]] = {}
        self.lists: set[str] = set()
        self.failures: list[OutOfMemory] = []
        self.made = []
        self.before = []
        for move in self.setup:
            self._make(move)
        self.before, self.made = self.made, []

    # Moves.

    def move(self, move: Move) -> Told:
        """Make a move. Raises `Refused` when it cannot be made; an out-of-memory error is told, not raised."""
        return self._make(dict(move))

    def undo(self) -> Told:
        """Take the last move back, by making all others again. Raises `Refused` when there is none."""
        if not self.made:
            raise Refused("there is no move to take back")
        made = self.made
        self._begin()
        for told in made[:-1]:
            self._make(told.move)
        return made[-1]

    def copy(self) -> Playground:
        """The same card after the same moves."""
        other = Playground(self.card, self.start_settings, self.setup)
        for told in self.made:
            other._make(told.move)
        return other

    def _make(self, move: dict) -> Told:
        kind = move.get("do")
        if kind not in KINDS:
            raise Refused(f"got the move {kind!r}, wanted one of {', '.join(KINDS)}")
        watch = telling.Watch(self.allocator)
        told = getattr(self, f"_{kind}")(move, watch)
        self.made.append(told)
        return told

    def _ask(self, move: dict, watch: telling.Watch) -> Told:
        name = self._new_name(move.get("name"))
        nbytes = self._size(move.get("size"))
        count = self._count(move.get("count", 1))
        old = self.blocks.get(name, [])  # as in Python: the new one is made before the old one is dropped
        if old and count is None:
            raise Refused(f"{name} is there already: fill the card under another name")
        room = MOST_BLOCKS - self.living
        wanted = room + 1 if count is None else count
        if wanted > room and count is not None:
            raise Refused(f"at most {MOST_BLOCKS:,} blocks may live at once here, and {self.living:,} do")
        got: list[Block | None] = []
        failure: OutOfMemory | NotASegment | None = None
        while len(got) < min(wanted, room) and failure is None:
            try:
                got.append(self.allocator.malloc(nbytes))
            except OutOfMemory as error:
                failure = error
            except InvalidFree:
                failure = NotASegment()
        many = count != 1
        text = f"{name} = {telling.exact(nbytes)}" + (f" × {len(got) if count is None else count:,}" if many else "")
        told = Told({**move, "name": name}, text, _code_of_ask(name, nbytes, count, len(got), failure))
        out_of_memory = isinstance(failure, OutOfMemory)
        told.said = watch.asked(nbytes, [block for block in got if block is not None], out_of_memory)
        if failure is not None:
            told.error = str(failure)
            if isinstance(failure, OutOfMemory):
                self.failures.append(failure)
        elif count is None:
            told.said.append(f"{MOST_BLOCKS:,} blocks live, and more are not drawn here: ask for larger ones.")
        if got and (failure is None or count is None):
            self.blocks[name] = got
            (self.lists.add if many else self.lists.discard)(name)
            told.said += self._drop(old, f"The old {name} is freed only now, after the new one was there.")
        else:
            self._drop(got, "")  # a comprehension that fails halfway drops what it had
        return told

    def _drop(self, blocks: Sequence[Block | None], why: str) -> list[str]:
        living = [block for block in blocks if block is not None]
        for block in reversed(living):  # as Python empties a list: from its end
            self.allocator.free(block)
        return [why] if living else []

    def _free(self, move: dict, watch: telling.Watch) -> Told:
        name = str(move.get("name", "")).strip()
        one = ONE_OF_MANY.fullmatch(name)
        if one is not None and one[1] in self.lists and int(one[2]) < len(self.blocks[one[1]]):
            items, at = self.blocks[one[1]], int(one[2])
            if items[at] is None:
                raise Refused(f"{name} was freed before")
            chosen, items[at] = [items[at]], None
            if not any(items):
                self._forget(one[1])
            code = f"{name} = None"
        elif name in self.blocks:
            chosen, code = self._forget(name), f"{name} = None"
        else:
            raise Refused(f"nothing is called {name!r}; there is {', '.join(self.blocks) or 'nothing to free'}")
        living = [block for block in chosen if block is not None]
        freed = [block.size for block in living]
        for block in reversed(living):
            self.allocator.free(block)
        return Told(move, f"free {name}", code, watch.freed(freed, living[0]))

    def _forget(self, name: str) -> list[Block | None]:
        self.lists.discard(name)
        return self.blocks.pop(name)

    def _empty_cache(self, move: dict, watch: telling.Watch) -> Told:
        self.allocator.empty_cache()
        return Told(move, "empty_cache", "torch.cuda.empty_cache()", watch.emptied())

    def _reset_peak(self, move: dict, watch: telling.Watch) -> Told:
        self.allocator.reset_peak_stats()
        said = ["Every peak starts again from what is there now."]
        return Told(move, "reset the peaks", "torch.cuda.reset_peak_memory_stats()", said)

    def _settings(self, move: dict, watch: telling.Watch) -> Told:
        text = str(move.get("text", ""))
        code = f"torch.cuda.memory._set_allocator_settings({text!r})"
        told = Told(move, f"settings {text or '(the defaults)'}", code)
        try:
            self.allocator.set_settings(text)
        except SettingsError as error:
            told.error = str(error)
            told.said = ["PyTorch refuses this text; what stands before the error counts all the same."]
            told.code = f"try:\n    {code}\nexcept Exception as error:\n    print(error)"
        except NotImplementedError as error:
            raise Refused(str(error)) from None
        else:
            told.said = ["What exists is left as it is; later requests, splits and frees follow the new settings."]
        return told

    # What was typed.

    def _new_name(self, name: object) -> str:
        if name is None or not str(name).strip():
            return self.next_name()
        name = str(name).strip()
        if not NAME.fullmatch(name):
            raise Refused(f"got the name {name!r}, wanted letters, digits and _, at most 20, and a letter first")
        return name

    def next_name(self) -> str:
        """The first of a, b, … z, a1, b1, … that nothing is called by."""
        names = (f"{letter}{turn or ''}" for turn in range(MOST_BLOCKS) for letter in "abcdefghijklmnopqrstuvwxyz")
        return next(name for name in names if name not in self.blocks)

    @staticmethod
    def _size(size: object) -> int:
        try:
            return sizes.parse(size if isinstance(size, int) else str("" if size is None else size))
        except ValueError as error:
            raise Refused(str(error)) from None

    @staticmethod
    def _count(count: object) -> int | None:
        if count == ANY_COUNT:
            return None
        try:
            number = int(str(count))
        except ValueError:
            number = 0
        if not 1 <= number <= MOST_BLOCKS:
            raise Refused(f"how often: got {count!r}, wanted 1 to {MOST_BLOCKS:,}, or {ANY_COUNT!r}")
        return number

    # What is there.

    @property
    def living(self) -> int:
        """How many blocks live."""
        return sum(block is not None for blocks in self.blocks.values() for block in blocks)

    def names(self) -> dict[int, str]:
        """What each living block is called, by its address: "a", or "a[3]" of a list."""
        return {
            block.address: f"{name}[{at}]" if name in self.lists else name
            for name, blocks in self.blocks.items()
            for at, block in enumerate(blocks)
            if block is not None
        }

    @property
    def requests(self) -> list[dict]:
        """The moves that asked for memory, of those that the player made."""
        return [told.move for told in self.made if told.move["do"] == "ask"]

    @property
    def unallocated(self) -> int:
        """Bytes that are reserved and not allocated."""
        return self.allocator.reserved - self.allocator.allocated

    def serves(self, *requests: str) -> bool:
        """Whether requests of these sizes would be served now, one after the other and all kept; on a copy."""
        other = self.copy()
        return all(other.move({"do": "ask", "size": size}).error is None for size in requests)

    def program(self) -> str:
        """The moves as a program of PyTorch."""
        lines = ["import torch", ""]
        if self.start_settings:
            lines.insert(0, f"# started with PYTORCH_ALLOC_CONF={self.start_settings!r}")
        if self.card.allowed is not None:
            share = f"{self.card.allowed} / torch.cuda.get_device_properties(0).total_memory"
            lines.append(f"torch.cuda.set_per_process_memory_fraction({share})")
        return "\n".join([*lines, *(told.code for told in [*self.before, *self.made])]) + "\n"


def _code_of_ask(name: str, nbytes: int, count: int | None, got: int, failure: Exception | None) -> str:
    tensor = f'torch.empty({nbytes}, dtype=torch.uint8, device="cuda")'
    lines = [f"{name} = {tensor}"]
    if count is None:
        kept = [f"{name} = [{tensor} for _ in range({got})]"] if got else []
        lines = [*kept, tensor]
    elif count != 1:
        lines = [f"{name} = [{tensor} for _ in range({count})]"]
    if failure is None:
        return lines[0]
    tried = ["try:", f"    {lines[-1]}", "except RuntimeError as error:", "    print(error)"]
    return "\n".join([*lines[:-1], *tried])
