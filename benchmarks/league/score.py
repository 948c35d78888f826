"""What the answers of a tool are worth: errors, and verdicts that were wrong."""

from __future__ import annotations

from statistics import median

from benchmarks.league.answer import Answer


def error(peak: float, true: int) -> float:
    """Relative: −0.5 is half of what it should be."""
    return peak / true - 1


def errors(answers: dict[str, Answer], oracle: dict[str, Answer]) -> dict[str, float]:
    """By workload, on the GPU where the tool is furthest off; only where the oracle did not run out of memory."""
    found = {}
    for name, answer in answers.items():
        both = [(answer.peak.get(gpu), true) for gpu, true in oracle[name].peak.items()]
        each = [error(peak, true) for peak, true in both if peak is not None and true is not None]
        if each:
            found[name] = max(each, key=abs)
    return found


def score(answers: dict[str, Answer], oracle: dict[str, Answer]) -> dict:
    """The tool's row. Errors in percent; `false fits` and `false does not fit` count workload × GPU."""
    off = errors(answers, oracle)
    verdicts = [(said, oracle[name].fits[gpu]) for name, answer in answers.items() for gpu, said in answer.fits.items()]
    answered = [answer for answer in answers.values() if not answer.refused]
    return {
        "answered": len(answered),
        "refused": len(answers) - len(answered),
        "median error %": _percent(median(map(abs, off.values()))) if off else None,
        "worst error %": _percent(max(off.values(), key=abs)) if off else None,
        "verdicts": len(verdicts),
        "false fits": sum(said and not true for said, true in verdicts),
        "false does not fit": sum(true and not said for said, true in verdicts),
        "seconds": round(median(answer.seconds for answer in answered), 2) if answered else None,
    }


def _percent(share: float) -> float:
    return round(100 * share, 1) + 0.0
