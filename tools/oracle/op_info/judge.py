"""What became of a sample and of an operator: equal, differs, told, refused, obscure, or set apart.

Told: it differs, and the simulated GPU has said by name what it leaves out.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field

from tools.oracle.op_info import apart
from tools.oracle.op_info.jobs import Job

REFUSALS = ("NotModelledError:", "NoValueError:")
DATA_DEPENDENT = "gives a tensor whose size depends on the values of its input"
VERDICTS = (
    "obscure",
    "differs",
    "refused",
    "told",
    "equal",
    "apart",
)  # of an operator: the first that one of its samples has
COMPARED = ("sample", "error", "events", "counters", "results", "grads")


@dataclass
class Outcome:
    """The verdict on a sample. `what` it differs in, its error, or why it is set apart; `at`: the event's place."""

    number: int
    verdict: str
    what: str = ""
    at: int | None = None
    operators: list[str] = field(default_factory=list)


def digest(facts: dict) -> str:
    """Eight hexadecimal digits of all that is compared of a sample."""
    compared = COMPARED[:2] if facts.get("error") else COMPARED
    facts = facts | {"error": _without_backends(facts.get("error"))}
    text = "\n".join(str(facts.get(key)) for key in compared)
    return f"{zlib.crc32(text.encode()):08x}"


def sample(job: Job, oracle: dict, simulated: dict | None) -> Outcome:
    """The verdict on one sample of both sides; `simulated` is None where that side ended before it."""
    number, error = oracle["number"], oracle.get("error")
    if why := apart.reason(job.suite, job.name, error, (simulated or {}).get("operators", ())):
        return Outcome(number, "apart", why)
    if oracle["stage"] in ("draw", "make"):
        return Outcome(number, "apart", f"the sample cannot be made: {_line(error)}")
    if simulated is None:
        return Outcome(number, "obscure", "the process ends")
    outcome = _judged(number, oracle, simulated)
    if outcome.verdict == "differs" and simulated.get("told"):
        said = "; ".join(f"{name}: {why}" for name, why in simulated["told"].items())
        outcome = Outcome(number, "told", said)
    ran = {one.split(".")[0] for one in simulated.get("operators", ())}
    if outcome.verdict == "differs" and ran & apart.BY_VALUES:
        outcome = Outcome(number, "apart", apart.VALUES)
    outcome.operators = simulated.get("operators", [])
    return outcome


def _judged(number: int, oracle: dict, simulated: dict) -> Outcome:
    if oracle["sample"] != simulated["sample"]:
        return Outcome(number, "obscure", "the sample is another one here")
    theirs, ours = (_without_backends(side.get("error")) for side in (oracle, simulated))
    if theirs != ours:
        if ours is not None and ours.startswith("NoValueError:") and DATA_DEPENDENT in ours:
            return Outcome(number, "apart", apart.VALUES)
        if ours is not None and ours.startswith(REFUSALS):
            return Outcome(number, "refused", _line(ours))
        if ours is not None:
            return Outcome(number, "obscure", f"{_line(ours)}" + (f" | oracle: {_line(theirs)}" if theirs else ""))
        return Outcome(number, "differs", f"only the oracle raises {_line(theirs)}")
    if theirs is not None:
        return Outcome(number, "equal")  # what is taken before an error is no program's result
    for key in COMPARED:
        if oracle.get(key) != simulated.get(key):
            at = _first(oracle["events"].split(), simulated["events"].split()) if key == "events" else None
            return Outcome(number, "differs", _told(key, oracle, simulated), at)
    return Outcome(number, "equal")


def _without_backends(error: str | None) -> str | None:
    """An error without PyTorch's list of the backends that do have the operator, which is as its build is."""
    return error if error is None else re.sub(r"' is only available for these backends: .*", "'", error, flags=re.S)


def _first(expected: list[str], actual: list[str]) -> int:
    same = (one == other for one, other in zip(expected, actual, strict=False))
    return next((place for place, equal in enumerate(same) if not equal), min(len(expected), len(actual)))


def _told(key: str, oracle: dict, simulated: dict) -> str:
    theirs, ours = oracle.get(key), simulated.get(key)
    if key == "events":
        theirs, ours = theirs.split(), ours.split()
        at = _first(theirs, ours)
        around = [" ".join(side[max(0, at - 2) : at + 3]) for side in (theirs, ours)]
        return f"event {at}: oracle {around[0]} | here {around[1]}"
    return f"{key}: oracle {theirs} | here {ours}"


def _line(error: str | None) -> str:
    return "" if error is None else " ".join(error.split())[:180]


def samples(job: Job, oracle: dict, simulated: dict | None) -> list[Outcome]:
    """The verdicts on the samples of a job, from what the workers found of it."""
    if "crash" in oracle:
        return [Outcome(0, "apart", f"the oracle's process {oracle['crash']}")]
    by_number = {one["number"]: one for one in (simulated or {}).get("samples", ())}
    return [sample(job, one, by_number.get(one["number"])) for one in oracle["samples"]]


def verdict(outcomes: list[Outcome]) -> str:
    """An operator's verdict: the worst of its samples'; "apart" only if all are, or there are none."""
    found = {one.verdict for one in outcomes}
    return next((verdict for verdict in VERDICTS if verdict in found), "apart")
