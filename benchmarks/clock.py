"""What the clock costs: a simulated BERT-base step with it, against one whose operators are not costed.

Processor time, the best of several rounds, taken in turn so that both sides see the same machine.
"""

import time
from unittest.mock import patch

import labkit
from benchmarks.training_step import ROUNDS, bert, step
from simgpu.dispatch import costs


def processor_seconds(model, optimizer) -> float:
    start = time.process_time()
    step(model, optimizer, 32, 512)
    return time.process_time() - start


def main():
    with labkit.simulated_gpu("A100-80GB"):
        model, optimizer = bert("cuda")
        step(model, optimizer, 32, 512)
        with_it, without = [], []
        for _ in range(ROUNDS):
            with_it.append(processor_seconds(model, optimizer))
            with patch.object(costs, "issue", lambda *call: None):
                without.append(processor_seconds(model, optimizer))
    print(f"BERT-base 32x512 training step: {min(with_it):.3f} s with the clock, {min(without):.3f} s without")
    print(f"the clock's share: {1 - min(without) / min(with_it):.1%} (goal: at most 10 %)")


if __name__ == "__main__":
    main()
