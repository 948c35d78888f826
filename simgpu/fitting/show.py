"""The output of `simgpu fit`: the answer to the question asked, and the page of the plan that it refers to."""

from collections.abc import Callable
from dataclasses import asdict, replace

from simgpu.fitting.fit import Fit
from simgpu.fitting.paged import UTILIZATION, Capacity
from simgpu.fitting.techniques import answer, rows_so_far, slower, techniques, within
from simgpu.gpus.specs import SPECS
from simgpu.report.report import Report
from simgpu.report.sizes import capacity, mib, size
from simgpu.report.verdict import CONTEXT_UNCERTAINTY, DOES_NOT_FIT, FITS, UNDECIDED

WORDS = {FITS: "fits", UNDECIDED: "undecided", DOES_NOT_FIT: "–"}


class Shown:
    """Makes the text for the command's options, and its exit status. `so_far` returns what is known during the work."""

    def __init__(self, options):
        self.options = options
        self.text, self.status = "", 0
        self.report: Report | None = None
        self.results: dict = {}
        self.so_far: Callable[[], str] = lambda: "Interrupted before the first plan was run, so nothing is known yet."

    def make(self, first: Callable[[], Fit]) -> None:
        """Runs what the options request. `first` creates the fit of the plan that they describe."""
        fit = first()
        self.so_far = lambda: f"Interrupted. The plan that was asked about:\n\n{fit}"
        if self.options.table:
            self.text, self.status = fit.table(), fit.status
            self.report = replace(fit.page, answer=tuple(self.text.split("\n")))
            return
        answers: list[str] = []
        if self.options.techniques or self.options.budget is not None:
            fit = self._techniques(fit, answers)
        if self.options.largest:
            fit = self._largest(fit, self.options.largest, answers)
        if self.options.every_gpu:
            fit = self._gpus(fit, answers)
        serving = fit.serving
        if serving is not None:
            self.results["serving"] = serving.document()
            answers.append(_server(fit, serving))
        elif self.options.serve and fit.subject.cache is not None:
            answers.append(_cache(fit))
        self.report = replace(fit.page, answer=tuple(answers), results=self.results)
        self.text, self.status = str(self.report), fit.status

    def _techniques(self, fit: Fit, answers: list[str]) -> Fit:
        """Adds the best combination, and the table if requested; returns the fit of the combination."""
        rows: list = []
        budget = None if self.options.budget is None else capacity(self.options.budget)
        self.so_far = lambda: f"Interrupted. What was tried so far:\n\n{rows_so_far(rows)}" if rows else "Interrupted."
        if not self.options.techniques:
            assert budget is not None
            before, best = within(fit, budget, rows)
            answers += [answer(budget, best, before), ""]
        else:
            table = techniques(fit, budget, rows)
            best = table.best if budget is not None else (*table.together[-1:], table.before)[0]
            if budget is None:
                answers.append(_least(best, table.before))
            answers.append(str(table))
        self.results["techniques"] = [_result(row) for row in rows]
        self.results["best"] = None if best is None else _result(best)
        if best is None:
            return fit
        return fit.on(fit.gpu, budget or fit.memory, best.plan)

    def _largest(self, fit: Fit, what: str, answers: list[str]) -> Fit:
        """Adds the largest batch or length that fits with bytes to spare, and the range too close to call; returns its
        fit.
        """
        for search in fit.searching(what):
            self.so_far = _searched(what, search.good, search.bad)
        good = sure = search.good
        if good:
            self.so_far = _searched(what, good, good + 1)
            *_, search = fit.searching(what, CONTEXT_UNCERTAINTY, (good, good + 1))
            sure = search.good
        self.results["largest"] = {"what": what, "fits": sure, "too_close_to_call_up_to": good}
        ends = what == "length" and good == fit.subject.longest
        after = f"{good + 1} runs out of memory" if not ends else f"the model takes no more than {good}"
        where = f"on a simulated {fit.gpu}"
        if not good:
            answers.append(f"No {what} fits {where}: a {what} of 1 runs out of memory.")
        elif sure == good and ends:
            answers.append(f"The largest {what} that fits: {sure}, the most that {fit.subject.name} takes ({where}).")
        elif sure == good:
            answers.append(f"The largest {what} that fits: {sure} ({where}; {after}).")
        elif sure:
            close = f"{sure + 1} to {good} are" if good > sure + 1 else f"{good} is"
            answers.append(f"The largest {what} that fits: {sure} ({where}; {close} too close to call, {after}).")
        else:
            answers.append(f"No {what} is sure to fit {where}: up to {good} it is too close to call, {after}.")
        answers.append("")
        return fit.changed(**{what: sure or good or 1})

    def _gpus(self, fit: Fit, answers: list[str]) -> Fit:
        """Adds the smallest GPU on which the plan fits and every GPU with its verdict; returns the fit on the
        smallest.
        """
        found: dict[str, str] = {}
        self.so_far = lambda: "\n".join(["Interrupted. So far:", *_rows(found)])
        for name, outcome in fit.each_gpu():
            found[name] = outcome
        self.results["gpus"] = found
        smallest = next((name for name, outcome in found.items() if outcome == FITS), None)
        close = next((name for name, outcome in found.items() if outcome == UNDECIDED), None)
        if smallest:
            answers.append(f"The smallest on which it fits: {smallest}")
        elif close:
            answers.append(f"It is sure to fit on none of them; the smallest on which it may fit: {close}")
        else:
            answers.append("It fits on none of them")
        answers += _rows(found)
        unable = [name for name in SPECS if name not in found]
        if unable:
            (first, second), what = fit.plan.capability
            answers.append(f"  {what} needs compute capability {first}.{second}; less have: {', '.join(unable)}")
        answers.append("")
        return fit.on(smallest or close or fit.gpu)


def _searched(what: str, good: int, bad: int) -> Callable[[], str]:
    """Returns a function that says what a search knows so far."""
    fits = f"a {what} of {good} fits (without a margin)" if good else "none that fits was found"
    return lambda: f"Interrupted. So far: {fits}, and {bad} does not fit or was not tried."


def _result(row) -> dict:
    """Returns a row of the table of techniques as data."""
    return {
        "applied": list(row.applied),
        "peak": row.peak,
        "nvidia_smi": row.nvidia_smi,
        "step": row.step,
        "time": None if row.time is None else asdict(row.time),
        "fits": row.fits,
    }


def _least(best, before) -> str:
    """Returns a sentence about the combination of all techniques that save something."""
    how = ", ".join(best.applied) or "nothing"
    return (
        f"With all that save something: {how}: a peak of {mib(best.peak)} MiB in place of {mib(before.peak)}"
        f"{slower(best, before)}.\n"
    )


def _rows(found: dict[str, str]) -> list[str]:
    return [f"  {name:<14}{mib(SPECS[name].total_memory):>12} MiB  {WORDS[outcome]}" for name, outcome in found.items()]


def _server(fit: Fit, found: Capacity) -> str:
    """Returns how many KV blocks and requests a server holds, and from which sizes that follows."""
    plan = fit.plan
    share = plan.utilization or UTILIZATION
    each = f" on each of {found.gpus} GPUs" if found.gpus > 1 else ""
    token = f"{found.layout.token_bytes(found.itemsize):,} B a token{each}"
    rows = [
        (f"{share:g} of {mib(fit.capacity)} MiB{each}", found.budget),
        ("− CUDA context", -found.context),
        ("− weights", -found.weights),
        (f"− prefill of {found.chunk:,} tokens, and sampling", -found.activations),
        ("= KV cache", found.available),
    ]
    count = f"{found.requests:,}" if found.requests == found.concurrency else f"{found.concurrency:,.1f}"
    return "\n".join(
        [
            f"KV cache, estimate: {found.blocks:,} blocks of {found.block_size} tokens, {found.tokens:,} tokens. "
            f"At once {count} requests of {found.length:,} tokens; {found.asked:,} were asked for.",
            *(f"  {name:<40}{mib(nbytes):>12} MiB" for name, nbytes in rows),
            f"  {token}, {found.request_blocks:,} blocks a request\n",
        ]
    )


def _cache(fit: Fit) -> str:
    """Returns the size of the KV cache, by formula."""
    length = fit.plan.length or 0
    token = fit.subject.cache or 0
    return (
        f"KV cache, by formula: {token:,} B a token, {size(token * length)} a request of {length:,} tokens. "
        "How many requests at once: --largest batch\n"
    )
