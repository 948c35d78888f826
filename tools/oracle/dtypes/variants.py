"""Calls in other dtypes than they were found in: all tensors alike, one apart from the others, drawn, empty ones."""

from __future__ import annotations

import copy
import json
import random
from collections import defaultdict
from collections.abc import Iterator

from tools.oracle.dtypes.calls import DTYPES, all_tensors, given, pattern, tensors

# Operators whose libraries are stubs in the oracle, and those that take memory alone.
LEFT_OUT = ("aten::_fft", "aten::_linalg", "aten::linalg_", "aten::_cudnn", "aten::cudnn", "aten::empty",
            "aten::sparse", "aten::_sparse", "aten::record_stream")  # fmt: skip
APART = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool", "complex64")
DRAWN = tuple(one for one in DTYPES if one != "complex32")
KNOWN, HELD_OUT = "train", "test"


def _units(call: dict) -> list[list]:
    """The tensors of each argument that has some: a list's go together."""
    return [found for value in given(call) if (found := list(tensors(value)))]


def _main(call: dict) -> str | None:
    """The dtype that the call is in: its first tensor's, or what it makes one of."""
    for one in all_tensors(call):
        return one[2]
    return next((value["dtype"] for value in given(call) if isinstance(value, dict) and "dtype" in value), None)


def _all_in(call: dict, main: str | None, dtype: str) -> dict:
    """The call with that dtype in the place of its main one."""
    made = copy.deepcopy(call)
    there = all_tensors(made)
    for one in there:
        if one[2] == main:
            one[2] = dtype
    for value in [] if there else given(made):
        if isinstance(value, dict) and value.get("dtype") == main:
            value["dtype"] = dtype
    return made


def _one_apart(call: dict, main: str) -> Iterator[dict]:
    units = _units(call)
    for place in range(min(len(units), 6) if len(units) > 1 else 0):
        for base in (main, "bfloat16") if main == "float32" else (main,):
            like = _all_in(call, main, base)
            for dtype in APART:
                made = copy.deepcopy(like)
                for one in _units(made)[place]:
                    one[2] = dtype
                yield made


def _empty(call: dict, main: str | None) -> Iterator[dict]:
    sizes = dict.fromkeys(size for one in all_tensors(call) for size in one[0] if size > 1)
    for size in list(sizes)[:4]:
        made = copy.deepcopy(call)
        for one in all_tensors(made):
            one[0] = [0 if other == size else other for other in one[0]]
        for dtype in DTYPES:
            yield _all_in(made, main, dtype)


def _drawn(call: dict, rng: random.Random, count: int) -> Iterator[dict]:
    main = _main(call)
    for _ in range(count if len(_units(call)) > 1 else 0):
        made = _all_in(call, main, rng.choice(DRAWN) if rng.random() < 0.5 else str(main))
        for unit in _units(made):
            if rng.random() < 0.4:
                dtype = rng.choice(DRAWN)
                for one in unit:
                    one[2] = dtype
        yield made


def _by_operator(found: list[dict]) -> dict[str, list[dict]]:
    kept: dict[str, dict[str, dict]] = defaultdict(dict)
    for call in found:
        if not call["op"].startswith(LEFT_OUT):
            kept[call["op"]].setdefault(pattern(call), call)
    return {name: list(calls.values()) for name, calls in kept.items()}


def known(found: list[dict]) -> list[tuple[str, dict]]:
    """(kind, call) of what the rules are made from; `found`: calls as PyTorch makes them. Kinds: same, mixed, empty,
    natural."""
    made: dict[str, tuple[str, dict]] = {}

    def add(kind: str, calls) -> None:
        for call in calls:
            made.setdefault(json.dumps(call), (kind, call))

    for name, calls in _by_operator(found).items():
        full = sorted((one for one in calls if not any(0 in t[0] for t in all_tensors(one))), key=_length)
        mains = [_main(one) for one in full]
        order = [one for one in (*APART, *DTYPES) if one in mains]
        main = order[0] if order else None
        chosen = [one for one in full if _main(one) == main]
        for call in chosen[:3]:
            add("same", (_all_in(call, main, dtype) for dtype in DTYPES))
        for call in chosen[:2]:
            add("mixed", _one_apart(call, str(main)))
        for call in chosen[:1]:
            add("empty", _empty(call, main))
        for call in chosen[:3]:
            add("mixed", _drawn(call, random.Random(KNOWN + name), 25))
        add("natural", calls[:80])
    return list(made.values())


def held_out(found: list[dict]) -> list[tuple[str, dict]]:
    """(kind, call) of other calls, drawn, by which the rules are judged."""
    made: dict[str, tuple[str, dict]] = {}
    for name, calls in _by_operator(found).items():
        longest = sorted(calls, key=_length, reverse=True)
        rng = random.Random(HELD_OUT + name)
        drawn = [one for call in longest[:4] for one in _drawn(call, rng, 8)]
        drawn += [_all_in(call, _main(call), dtype) for call in longest[:3] for dtype in rng.sample(DTYPES, 5)]
        for call in drawn:
            made.setdefault(json.dumps(call), ("drawn", call))
    return list(made.values())


def _length(call: dict) -> int:
    return len(json.dumps(call))
