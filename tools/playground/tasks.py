"""Tasks of chapters 01, 02 and 02b: where they begin, what may be done, and a judge that says when they are solved.

Each comes with a solution, which the page can show move by move, and which the tests play.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.playground.game import Card, Move, Playground, Refused, Told
from tools.playground.telling import exact as size

MIB = 2**20
SMALL_CARD = Card(2048 * MIB, allowed=1536 * MIB)
"""Chapter 02's: of a GPU of 2 GiB, PyTorch may take 1536 MiB."""

Judge = Callable[[Playground], tuple[bool, str]]
"""Says of a game whether the task is solved, and how things stand."""


def ask(size: str, name: str = "", count: int | str = 1) -> Move:
    """Ask for memory."""
    return {"do": "ask", "size": size, "name": name, "count": count}


def free(name: str) -> Move:
    """Free what is called so."""
    return {"do": "free", "name": name}


EMPTY: Move = {"do": "empty_cache"}


def cut(whole: str, *parts: tuple[str, str]) -> tuple[Move, ...]:
    """A segment of that size, cut into tensors of these sizes and names."""
    return ask(whole, "whole"), free("whole"), *(ask(size, name) for size, name in parts)


@dataclass(frozen=True)
class Task:
    """`goal` is the task in words; `allowed` the kinds of moves that may be made, at most `most_moves`."""

    key: str
    chapter: str
    title: str
    goal: str
    hint: str
    why: str
    judge: Judge
    solution: Sequence[Move]
    setup: Sequence[Move] = ()
    card: Card = SMALL_CARD
    allowed: Sequence[str] = ("ask", "free", "empty_cache")
    most_moves: int | None = None
    solution_settings: str = ""

    def start(self, settings: str = "") -> Playground:
        """A new game of this task; `settings` where they are what is to be found."""
        return Playground(self.card, settings, self.setup)

    def move(self, game: Playground, move: Move) -> Told:
        """Make a move of the task. Raises `Refused` for one that it does not allow, as for one that cannot be made."""
        if not self.allowed:
            raise Refused("this task is solved by settings alone: type them, and start again with them")
        if move.get("do") not in self.allowed:
            raise Refused(f"this task is to be solved with {' and '.join(self.allowed)} alone")
        if self.left(game) == 0:
            raise Refused(f"the task's {self.most_moves} moves are made: take one back, or start it again")
        return game.move(move)

    def left(self, game: Playground) -> int | None:
        """How many moves may still be made; None for any number."""
        return None if self.most_moves is None else self.most_moves - len(game.made)


def one_byte_more(game: Playground) -> tuple[bool, str]:
    """A single request, of 1 MiB + 1 B, makes PyTorch reserve 20 MiB."""
    requested, reserved = game.allocator.stats()["requested_bytes"]["all"]["current"], game.allocator.reserved
    single = len(game.made) == 1 and game.living == 1
    said = f"requested {requested:,} B, reserved {size(reserved)}"
    if reserved and not single:
        return False, said + "; but not with one single request: take moves back"
    if reserved == 20 * MIB and requested > MIB + 1:
        return False, said + "; a smaller request does it, too"
    return single and reserved == 20 * MIB, said


def ten_free_eight_not(game: Playground) -> tuple[bool, str]:
    """10 MiB free, and 8 need a new segment."""
    allocator = game.allocator
    other = game.copy()
    other.move(ask("8 MiB"))
    grows = other.allocator.reserved - allocator.reserved
    said = f"{size(game.unallocated)} are free, and 8 MiB would add {size(grows)} to reserved"
    return game.unallocated >= 10 * MIB and grows > 0, said


def room_for_800(game: Playground) -> tuple[bool, str]:
    """800 MiB would be served."""
    served = game.serves("800 MiB")
    largest = max((block["size"] for block in free_blocks(game)), default=0)
    said = f"the largest free block has {size(largest)}; 800 MiB would {'be served' if served else 'fail'}"
    return served, said


def thousand_free(game: Playground) -> tuple[bool, str]:
    """1000 MiB are free in PyTorch's cache, and a request of 800 was refused."""
    refused = bool(game.failures) and game.made[-1:] != [] and game.made[-1].error is not None
    size_asked = game.failures[-1].size if refused else 0
    said = f"{size(game.unallocated)} are reserved and unallocated"
    said += f"; {size(size_asked)} were refused" if refused else "; the last move was no request that failed"
    return refused and size_asked <= 800 * MIB and game.unallocated >= 1000 * MIB, said


def three_refused(game: Playground) -> tuple[bool, str]:
    """3 MiB were refused as the last move, and 18 MiB were never taken."""
    refused = bool(game.made) and game.made[-1].error is not None and game.failures[-1].size == 3 * MIB
    never_taken = 1536 * MIB - game.allocator.reserved
    said = f"{size(never_taken)} were never taken; 3 MiB were {'' if refused else 'not yet '}refused"
    if refused and never_taken < 18 * MIB:
        said += "; more can be left"
    return refused and never_taken >= 18 * MIB, said


def most_returned(game: Playground) -> tuple[bool, str]:
    """empty_cache has returned the most that four frees allow."""
    left = game.allocator.reserved
    return left <= 66 * MIB, f"{size(left)} are reserved, of which {size(game.allocator.allocated)} are allocated"


def loop_goes_on(game: Playground) -> tuple[bool, str]:
    """256 and then 1024 MiB live."""
    found = sorted(block.requested_size for blocks in game.blocks.values() for block in blocks if block is not None)
    said = f"{size(game.allocator.allocated)} are allocated, {size(game.allocator.reserved)} reserved"
    return found == [256 * MIB, 1024 * MIB], said


def program_runs(game: Playground) -> tuple[bool, str]:
    """The moves that were made before the player came have all been served."""
    failed = len(game.failures)
    text = game.start_settings or "the defaults"
    return not failed, f"with {text}, {'a request fails' if failed else 'every request is served'}"


def free_blocks(game: Playground) -> list[dict]:
    """The free blocks of every segment."""
    return [
        block
        for segment in game.allocator.snapshot_segments()
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]


# Chapter 02's pin: a segment of 1024 MiB is cut into two tensors of 500 and one of 24.
PINNED = cut("1024 MiB", ("500 MiB", "left"), ("24 MiB", "pin"), ("500 MiB", "right"))

TASKS = (
    Task(
        "one_byte_more",
        "01",
        "The dearest byte",
        "Make PyTorch reserve 20 MiB with one single request, of as few bytes as you can.",
        "Which requests come from the small pool?",
        "1 MiB is the last size of the small pool, whose segments have 2 MiB. One byte more belongs to the large pool, "
        "and requests below 10 MiB share segments of 20 MiB there.",
        one_byte_more,
        (ask("1048577", "x"),),
    ),
    Task(
        "ten_free_eight_not",
        "01",
        "Ten are free, eight are not",
        "Five tensors fill a segment of 20 MiB. Free at least 10 MiB, so that a request of 8 MiB still needs a new "
        "segment. Nothing else may be done.",
        "Freed neighbours merge. Which of the five are no neighbours?",
        "6 and 4 MiB are free, with 2 MiB alive between them. Blocks cannot be moved, so no piece has 8 MiB: memory is "
        "fragmented for this request.",
        ten_free_eight_not,
        (free("a"), free("c")),
        setup=tuple(ask(f"{n} MiB", name) for n, name in zip((6, 2, 4, 2, 6), "abcde", strict=True)),
        allowed=("free",),
        most_moves=2,
    ),
    Task(
        "most_returned",
        "01",
        "What can empty_cache return?",
        "Four segments have 60, 36, 30 and 14 MiB, and eight tensors fill them. Free four tensors, call empty_cache "
        "once, and bring reserved down to 66 MiB.",
        "empty_cache returns whole segments. What does it take to empty each of them?",
        "The segment of 60 MiB is empty after three frees, and that of 14 after one: 74 MiB go back. Freeing the four "
        "largest tensors frees more bytes, and returns 36 MiB.",
        most_returned,
        (free("a"), free("b"), free("c"), free("h"), EMPTY),
        setup=(
            *cut("60 MiB", ("29 MiB", "a"), ("2 MiB", "b"), ("29 MiB", "c")),
            *cut("36 MiB", ("18 MiB", "d"), ("18 MiB", "e")),
            *cut("30 MiB", ("15 MiB", "f"), ("15 MiB", "g")),
            ask("14 MiB", "h"),
        ),
        allowed=("free", "empty_cache"),
        most_moves=5,
    ),
    Task(
        "room_for_800",
        "02",
        "800 MiB with three moves",
        "PyTorch may take 1536 MiB, and seven tensors fill them. With three moves make room for a request of 800 MiB. "
        "Nothing but free is allowed.",
        "The three largest are not the answer. Which three lie side by side, or fill a segment?",
        "300, 250 and 260 MiB are neighbours, and merge to one free block of 810. The three largest have more bytes, "
        "in three holes.",
        room_for_800,
        (free("c"), free("d"), free("e")),
        setup=cut(
            "1536 MiB",
            *((f"{n} MiB", name) for n, name in zip((320, 50, 300, 250, 260, 36, 320), "abcdefg", strict=True)),
        ),
        allowed=("free",),
        most_moves=3,
    ),
    Task(
        "thousand_free",
        "02",
        "1000 MiB free, and 800 refused",
        "PyTorch may take 1536 MiB. Have at least 1000 MiB reserved and unallocated, and a request of at most 800 MiB "
        "refused, as your last move.",
        "Two segments of 500 MiB would go back to the device. What keeps a hole from going back?",
        "A tensor that is alive pins the whole segment from which it is cut: neither hole goes back, neither has "
        "800 MiB, and beside the segment there is no room for another.",
        thousand_free,
        (*PINNED, free("left"), free("right"), ask("800 MiB")),
    ),
    Task(
        "three_refused",
        "02",
        "3 MiB do not fit in 18",
        "PyTorch may take 1536 MiB. Have a request of 3 MiB refused, and leave as much memory never taken as you can.",
        "What does the message say that it tried to allocate?",
        "A request between 1 and 10 MiB asks the device for a segment of 20 MiB. Segments of large tensors are "
        "multiples of 2 MiB, so 18 MiB are the most that can be left.",
        three_refused,
        (ask("1518 MiB", "big"), ask("3 MiB")),
    ),
    Task(
        "loop_goes_on",
        "02",
        "After the failure",
        "A step that needs 512 MiB and then 2048 more has just failed, and its tensors are gone. With three moves have "
        "256 and 1024 MiB alive at once. PyTorch may take 1536.",
        "From which segment are the 256 MiB cut?",
        "The failed step left a free segment of 1024 MiB. 256 MiB cut from it would pin it, and another 1024 do not "
        "fit beside it. empty_cache between two attempts gives it back first.",
        loop_goes_on,
        (EMPTY, ask("256 MiB"), ask("1024 MiB")),
        setup=(ask("1024 MiB", "kept"), ask("2048 MiB", "big"), free("kept")),
        most_moves=3,
    ),
    Task(
        "program_runs",
        "02b",
        "Settings instead of moves",
        "A program ends in an out-of-memory error: a pin of 24 MiB keeps 1000 MiB in holes. Find settings with which "
        "every request is served. Type them below, and press “Start again with these”.",
        "Which setting gives a segment's pages back one by one? Which one keeps small tensors out of large blocks?",
        "With expandable_segments:True the pages of a hole go back to the device. With max_split_size_mb below 1024 "
        "the free block of 1024 MiB is not cut, so nothing pins it.",
        program_runs,
        (),
        setup=(*PINNED, free("left"), free("right"), ask("800 MiB", "big")),
        allowed=(),
        most_moves=0,
        solution_settings="expandable_segments:True",
    ),
)
