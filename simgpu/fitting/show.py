"""What `simgpu fit` prints: a page, or the answer to the question that was asked beside it."""

from simgpu.fitting.fit import Fit
from simgpu.hardware.gpus import SPECS
from simgpu.report.sizes import mib, size


def shown(fit: Fit, options) -> str:
    """The text for the command's options."""
    if options.table:
        return fit.table()
    if options.techniques or options.budget is not None:
        return str(fit.techniques(options.budget))
    text = [str(fit)]
    if options.serve and fit.subject.cache is not None:
        text.append(_cache(fit))
    if options.largest:
        text.append(_largest(fit, options.largest))
    if options.every_gpu:
        text.append(_gpus(fit))
    return "\n".join(text)


def _largest(fit: Fit, what: str) -> str:
    """The largest batch or length, and whether it is memory that ends it."""
    found = fit.largest(what)
    ends = what == "length" and found == fit.subject.longest
    most = f", the most that {fit.subject.name} takes, whatever the memory" if ends else ""
    return f"The largest {what} that fits: {found}{most}\n"


def _cache(fit: Fit) -> str:
    """The KV cache, by formula."""
    length = fit.plan.length or 0
    token = fit.subject.cache or 0
    return (
        f"KV cache, by formula: {token:,} B a token, {size(token * length)} a request of {length:,} tokens. "
        "How many requests at once: --largest batch\n"
    )


def _gpus(fit: Fit) -> str:
    """Every GPU, and the smallest that does."""
    every = fit.every_gpu()
    rows = [
        f"  {name:<14}{mib(SPECS[name].total_memory):>12} MiB  {'fits' if fits else '–'}"
        for name, fits in every.items()
    ]
    smallest = fit.cheapest()
    answer = f"The smallest on which it fits: {smallest}" if smallest else "It fits on none of them"
    return "\n".join([answer, *rows]) + "\n"
