"""Runs other ranks first: where a rank waits for a message, the rank that sends it runs up to that point.

The stages of a pipeline exchange the shapes of what they send (PipelineStage of torch.distributed.pipelining,
without input_args), and one rank runs at a time.
"""

import contextlib
import io
import sys
from collections.abc import Callable

from simgpu.distributed.messages import Enough, NotSentError, clear, until_sent


def in_turn(attempt: Callable, rank: int):
    """What `attempt(rank)` returns, after as much of other ranks as it takes.

    `attempt(rank, asked)` runs the program as a rank. It raises NotSentError where that one waits for another, unless
    it is `asked=False`, for good: then that is an error of the program's like others.
    """
    clear()
    waiting: list[NotSentError] = []  # for each rank that was begun, what the one before it in this list waits for
    before = None
    while True:
        try:
            if not waiting:
                return attempt(rank)
            _as_far_as(waiting[-1], attempt)
        except NotSentError as error:
            if any(error.same_as(one) for one in waiting) or (before is not None and error.same_as(before)):
                return attempt(rank, asked=False)  # it was to be sent, and was not
            print(f"(rank {error.receiver} waits for rank {error.sender}, which runs first)", file=sys.stderr)
            waiting.append(error)
        except _GivenUp:
            return attempt(rank, asked=False)
        else:
            before = waiting.pop()


class _GivenUp(Exception):
    """A rank that was to run first ended without having sent what another waits for."""


def _as_far_as(wanted: NotSentError, attempt: Callable) -> None:
    """Runs the sender until it has sent what is wanted; what it prints is not shown."""
    hidden = io.StringIO()
    try:
        with contextlib.redirect_stdout(hidden), contextlib.redirect_stderr(hidden), until_sent(wanted):
            attempt(wanted.sender)
    except Enough:
        return
    raise _GivenUp
