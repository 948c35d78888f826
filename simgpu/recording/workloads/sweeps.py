"""BERT-base over batch sizes and over lengths."""

from functools import partial

from simgpu.recording.workloads.language import bert_training

BATCHES = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (32, 64, 128, 256, 384, 512)
training = partial(bert_training, size="base", attention="eager", mode="fp32")

WORKLOADS = {f"batch-{batch}": partial(training, batch=batch, length=128) for batch in BATCHES}
WORKLOADS |= {f"length-{length}": partial(training, batch=8, length=length) for length in LENGTHS}
