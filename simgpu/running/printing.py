"""Keeps standard output for one JSON document: what a program prints goes to standard error."""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def on_stderr() -> Iterator[None]:
    """Sends to standard error what is printed inside the `with`, also by processes that are started there and by C."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.close(kept)


def nothing_more() -> None:
    """Sends to standard error what the process still prints when it ends. What was printed before is written first."""
    sys.stdout.flush()
    os.dup2(2, 1)
    sys.stdout = sys.stderr
