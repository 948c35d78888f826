"""Time and host memory of simulating one rank of a large run: a step of Llama 3.1 405B on 512 GPUs.

    python -m benchmarks.large_run [STAGE]

The plan is torchtitan's of 2024 (FSDP 8, TP 8, PP 8; 8 micro-batches of 4 sequences of 8192 tokens), and chapter 22
runs the same function. STAGE is 0 to 7 (default: 0). The whole depth of the stage is simulated, on an H100 with 96 GB.
"""

import sys
import time

from benchmarks.large_model import GIB, resident
from helpers import plans, ranks

PLAN = plans.Plan(pipeline=8, shards=8, tensor=8, sequences=4, micro_batches=8)


def main(stage: str = "0"):
    model = plans.MODELS["405B"]
    layers = plans.layers_of(model.layers, PLAN.pipeline)
    if not stage.isdecimal() or int(stage) >= PLAN.pipeline:
        raise SystemExit(f"STAGE is 0 to {PLAN.pipeline - 1}; {stage!r} was given")
    before, start = resident(), time.perf_counter()
    one = ranks.simulate(model, PLAN, layers[int(stage)], int(stage))
    rank = PLAN.first_rank(int(stage))
    print(f"405B, {PLAN}: stage {stage} of {layers[int(stage)]} layers, rank {rank} of {PLAN.gpus}")
    print(f"simulated peak {one.peak / GIB:.2f} GiB allocated, {one.reserved / GIB:.2f} GiB reserved")
    print(f"host memory: {resident() / GIB:.2f} GiB at most, {(resident() - before) / GIB:.2f} of it for this")
    print(f"{time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
