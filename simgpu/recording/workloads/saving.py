"""GPT-2 small with memory-saving techniques."""

from functools import partial

from simgpu.recording.workloads.language import gpt2_training

WORKLOADS = {
    "checkpointing": partial(gpt2_training, checkpointing=True),
    "checkpointing-bf16": partial(gpt2_training, mode="bf16", checkpointing=True),
    "accumulation": partial(gpt2_training, batch=1, micro_batches=4),
    "accumulation-checkpointing-bf16": partial(
        gpt2_training, mode="bf16", batch=1, micro_batches=4, checkpointing=True
    ),
}
