"""docs/operators.md: whether each operator, module and optimizer of PyTorch is proved; made from the digests."""

from __future__ import annotations

from collections import Counter, defaultdict

from tools.oracle import run
from tools.oracle.op_info import digests

PAGE = run.ROOT / "docs" / "operators.md"
TITLES = {"op": "operator", "foreach": "foreach operator", "module": "module", "optim": "optimizer"}
OPENING = """# Operators, one by one

PyTorch's own samples of its operators, modules and optimizers (`op_db`, `module_db`, `optim_db` and the foreach lists
of `torch.testing._internal`), run on the simulated GPU and on the oracle: PyTorch's CUDA host code under stub
libraries, torch {torch}, no GPU, cuDNN off. Compared are the allocator's events, the counters, and shape, strides,
dtype and device of results and gradients. [oracle.md](oracle.md) says how; `python -m tools.oracle proved` writes this
page, and a test holds it to what is stored.

A pass is a suite, a dtype, a variant (plain, in place, `out=`) and a size of the samples. *Left out by name* means
that the simulated GPU runs it, and says in the sample itself (`IncompleteEstimateWarning`) what its figures exclude.
*Refused* means that it says by name that it does not model this. *Set apart* means that the oracle cannot answer, for
the reason given. The simulated GPU does not include what a library allocates (cuFFT, cuSOLVER, MAGMA), and says so at
the first use.
"""


def gpus() -> list[str]:
    """The GPUs of which there are digests."""
    return sorted(path.name.removesuffix(".json.gz") for path in digests.FOLDER.glob("*.json.gz"))


def text() -> str:
    """The page."""
    stored = {gpu: digests.load(gpu) for gpu in gpus()}
    blocks = [OPENING.format(torch=digests.torch_of(gpus()[0])), _passes(stored)]
    by_name = _by_name(stored)
    for verdict, title, what in (
        ("differs", "Differ", "first difference"),
        ("obscure", "Fail with another error", "error"),
        ("told", "Left out by name", "what it says"),
        ("refused", "Refused by name", "what it says"),
        ("apart", "Set apart: the oracle cannot answer", "reason"),
    ):
        blocks.append(_table(title, what, by_name, verdict))
    blocks.append(_proved(by_name))
    return "\n".join(filter(None, blocks))


def _passes(stored: dict) -> str:
    lines = [
        "## Passes\n",
        "| pass | GPU | comparable | equal | left out by name | refused | differ | another error | set apart |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for gpu, parts in stored.items():
        for part, of in parts.items():
            counts = Counter(one.verdict for one in of.values())
            numbers = (counts[verdict] for verdict in ("equal", "told", "refused", "differs", "obscure", "apart"))
            lines.append(f"| {part} | {gpu} | {len(of) - counts['apart']} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines) + "\n"


def _by_name(stored: dict) -> dict[tuple[str, str], dict[str, list[tuple[str, str]]]]:
    """Of each (suite, name) its verdicts, each with (pass and GPU, what)."""
    found: dict = defaultdict(lambda: defaultdict(list))
    for gpu, parts in stored.items():
        for part, of in parts.items():
            suite, _, rest = part.partition("-")
            for name, one in of.items():
                found[suite, name][one.verdict].append((f"{rest}, {gpu}", one.what))
    return dict(sorted(found.items()))


def _table(title: str, what: str, by_name: dict, verdict: str) -> str:
    rows = []
    for (suite, name), verdicts in by_name.items():
        if verdict == "apart" and set(verdicts) != {"apart"}:
            continue
        if found := verdicts.get(verdict):
            places = "all passes" if set(verdicts) == {verdict} else f"{found[0][0]}" + _and_more(len(found) - 1)
            rows.append(f"| {TITLES[suite]} `{name}` | {places} | {_cell(found[0][1])} |")
    if not rows:
        return ""
    return "\n".join([f"## {title}: {len(rows)}\n", f"| name | where | {what} |", "|---|---|---|", *rows]) + "\n"


def _and_more(count: int) -> str:
    return f" and {count} more" if count else ""


def _cell(what: str) -> str:
    return f"`{what[:140].replace('`', '').replace('|', '·')}`" if what else ""


def _proved(by_name: dict) -> str:
    blocks = []
    for suite, title in TITLES.items():
        of_suite = ((name, set(verdicts)) for (of, name), verdicts in by_name.items() if of == suite)
        names = [f"`{name}`" for name, found in of_suite if "equal" in found and found <= {"equal", "apart"}]
        if names:
            blocks.append(f"### {len(names)} {title}s\n\n{', '.join(names)}\n")
    return "\n".join(["## Proved: equal in every pass that can be compared\n", *blocks])


def write() -> None:
    """Write it."""
    PAGE.write_text(text(), encoding="utf-8")
