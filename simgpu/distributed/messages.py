"""Delivers the messages between ranks that decide what they do: small integers, and objects as bytes.

A pipeline's ranks vote, and send each other the shapes of what follows (torch/distributed/pipelining/stage.py). One
rank runs at a time, so a message is stored for its receiver. If the ranks run in turn in one process, 0 first, each
finds what earlier ranks have sent. A message that was not sent yet is answered if only one answer is possible: a vote,
with the votes of this rank alone, and gradients' shapes, which are those of the corresponding outputs.
"""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.distributed import meeting
from simgpu.errors import NoValueError
from simgpu.storage import storage_map, values

Way = tuple[tuple[int, ...], int, int]  # the ranks of the group, the sender and the receiver among them

_kept: dict[Way, list[torch.Tensor]] = {}
_read: dict[Way, int] = {}
_wanted: list["NotSentError"] = []  # the wanted message of a run that ends when it has been sent


class NotSentError(NoValueError):
    """Raised when a rank waits for an object that was not sent, the one with this `number` (from 1) on its way.

    `sender` and `receiver` are ranks of the world.
    """

    def __init__(self, text: str, way: Way, number: int):
        super().__init__(text)
        self.way, self.number = way, number
        self.sender, self.receiver = way[0][way[1]], way[0][way[2]]

    def same_as(self, other: "NotSentError") -> bool:
        return (self.way, self.number) == (other.way, other.number)


class Enough(BaseException):
    """Raised when a rank has sent what was wanted. Not an Exception, so that programs let it pass."""


@contextmanager
def until_sent(wanted: NotSentError) -> Iterator[None]:
    """Raises Enough, inside the `with`, in the rank that has sent what is wanted."""
    _wanted.append(wanted)
    try:
        yield
    finally:
        _wanted.pop()


def begin(rank: int, ranks: int) -> None:
    """Starts rank `rank` of a world of `ranks`: drops what it sent before, and lets it read from the first message
    on.
    """
    for way in [*_kept]:
        group, sender, receiver = way
        if group[-1] < ranks and group[sender] == rank:
            del _kept[way]
            _read.pop(way, None)
        elif group[-1] < ranks and group[receiver] == rank:
            _read[way] = 0


def clear() -> None:
    """Drops all messages, for a new program."""
    _kept.clear()
    _read.clear()


def send(way: Way, tensor: torch.Tensor) -> None:
    """Stores a message to another rank, if it consists of known integers."""
    if tensor.is_floating_point() or tensor.is_complex():
        return
    known = tensor if storage_map.of(tensor) is None else values.of(tensor)
    if known is not None:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            # Copied to the host, so that on a real GPU a stored message uses none of this rank's memory.
            copy = known.detach().to("cpu", copy=True)
            _kept.setdefault(way, []).append(copy)
            if meeting.here is not None:
                meeting.here.send(way, copy)
        if _wanted and _wanted[-1].way == way and _objects(_kept[way]) >= _wanted[-1].number:
            raise Enough


def receive(way: Way, tensor: torch.Tensor) -> bool:
    """Writes into `tensor` what the other rank has sent, or must send; returns whether anything is known."""
    if tensor.is_floating_point() or tensor.is_complex():
        return False
    _fetch(way, wait=False)
    there, at = _kept.get(way, ()), _read.get(way, 0)
    if at < len(there) and (there[at].dtype, there[at].numel()) == (tensor.dtype, tensor.numel()):
        _read[way] = at + 1
        _put(tensor, there[at])
        return True
    if tensor.dtype == torch.int32 and tensor.numel() == 1:
        _put(tensor, torch.full((1,), _vote(way), dtype=torch.int32, device="cpu"))
        return True
    return False


def _vote(way: Way) -> int:
    """Returns the product of all votes, where only this rank may have voted no: what it last sent to that peer, or
    1.
    """
    group, sender, receiver = way
    sent = [one for one in _kept.get((group, receiver, sender), ()) if one.dtype == torch.int32 and one.numel() == 1]
    return int(sent[-1]) if sent else 1


def _put(tensor: torch.Tensor, known: torch.Tensor) -> None:
    known = known.reshape(tensor.shape)
    if storage_map.of(tensor) is None:
        tensor.copy_(known)
    else:
        values.keep(tensor, known)


def waiting(way: Way) -> bool:
    """Returns whether an object comes next: its size, then its bytes. Waits for it if its sender actually runs."""
    _fetch(way, wait=False)
    while meeting.here is not None and len(_kept.get(way, [])) < _read.get(way, 0) + 2:
        _fetch(way, wait=True)
    next_two = _kept.get(way, [])[_read.get(way, 0) :][:2]
    return [one.dtype for one in next_two] == [torch.int64, torch.uint8]


def _fetch(way: Way, wait: bool) -> None:
    """Stores what an actually running rank has sent; with `wait`, until there is one more message."""
    while meeting.here is not None:
        found = meeting.here.receive(way, wait)
        if found is None:
            return
        _kept.setdefault(way, []).append(found)
        wait = False


def _objects(messages: list[torch.Tensor]) -> int:
    """Counts the messages that are an object's bytes."""
    return sum(one.dtype == torch.uint8 for one in messages)


def expect(way: Way, made) -> None:
    """Stores the only object that the other rank can send, `made()`, as if it was sent, unless one is waiting."""
    if waiting(way):
        return
    content = torch.frombuffer(bytearray(pickle.dumps(made())), dtype=torch.uint8)
    _kept.setdefault(way, []).extend([torch.tensor([content.numel()], device="cpu"), content])


def not_sent(way: Way) -> NotSentError:
    """Returns the error for a rank that waits for an object that was not sent."""
    group, sender, receiver = way
    peer, rank = group[sender], group[receiver]
    return NotSentError(
        f"rank {rank} waits for an object from rank {peer}, which has sent none in this process. `simgpu run` lets "
        f"rank {peer} run first, as far as that; in a program of your own run rank {peer} before rank {rank}, each in "
        "a one_rank(...) of the same simulated GPU or of one after the other; or let nothing depend on it: "
        "PipelineStage(..., input_args=, output_args=) says the shapes beforehand",
        way,
        _objects(_kept.get(way, [])[: _read.get(way, 0)]) + 1,
    )
