"""What the clock costs: a simulated BERT-base step with it, against one whose operators are not costed.

Processor time in one process, in pairs whose first is each in turn. So both sides see the same machine, and the
median of the pairs' ratios does not depend on how fast it is.
"""

import gc
import statistics
import time
from contextlib import nullcontext
from unittest.mock import patch

import labkit
from benchmarks.training_step import bert, step
from simgpu.dispatch import costs

PAIRS = 60


def processor_seconds(model, optimizer, costed: bool) -> float:
    gc.collect()
    with nullcontext() if costed else patch.object(costs, "issue", lambda *call: None):
        start = time.process_time()
        step(model, optimizer, 32, 512)
        return time.process_time() - start


def main():
    with labkit.simulated_gpu("A100-80GB"):
        model, optimizer = bert("cuda")
        step(model, optimizer, 32, 512)
        pairs = []
        for number in range(PAIRS):
            order = (True, False) if number % 2 else (False, True)
            pairs.append({costed: processor_seconds(model, optimizer, costed) for costed in order})
    with_it, without = (statistics.median(one[costed] for one in pairs) for costed in (True, False))
    shares = statistics.quantiles((1 - one[False] / one[True] for one in pairs), n=4)
    print(f"BERT-base 32x512 training step: {with_it:.3f} s with the clock, {without:.3f} s without (medians)")
    print(f"the clock's share: {shares[1]:.1%}, median of {PAIRS} pairs; half of them are between", end=" ")
    print(f"{shares[0]:.1%} and {shares[2]:.1%} (goal: at most 10 %)")


if __name__ == "__main__":
    main()
