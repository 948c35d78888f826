"""What would help a program that ran out of memory: each measure with the bytes that it touches at that moment."""

from simgpu.report.owners import ACTIVATIONS, GRADIENTS, PARAMETERS, STATES, TEMPORARIES
from simgpu.report.report import CACHE, Report
from simgpu.report.sizes import size
from simgpu.report.verdict import OUT_OF_MEMORY

SMALL = 0.03  # of what is reserved: a part below that is not worth a measure
BLOCKWISE = (2 + 8 / 256) / 8  # of AdamW's two float32 states, in 8 bits with a scale of 4 B for each block of 256


def helps(report: Report) -> list[str]:
    """Measures, most bytes first, with the reader's own numbers. Nothing if it fits."""
    if report.ending != OUT_OF_MEMORY or report.failure is None:
        return []
    asked, free, _ = report.failure
    found = measures(report.parts)
    cache = report.parts.get(CACHE, 0)
    missing = max(0, asked - free)
    first = (
        f"{size(missing)} are missing for this one request; how much the whole run needs, "
        "--memory with a larger size tells"
    )
    if cache >= missing > 0:
        found.insert(
            0,
            f"the cache holds {size(cache)} in pieces: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may make one "
            "of them; run it again with that set",
        )
    return [first, *found]


def measures(parts: dict[str, int]) -> list[str]:
    """What makes each of the parts smaller, the largest part first, with its bytes."""
    whole = sum(parts.values())
    found = []
    for part, measure in _MEASURES.items():
        held = parts.get(part, 0)
        if held > SMALL * whole:
            sizes = {"size": size(held), "half": size(held // 2), "eight": size(round(held * BLOCKWISE))}
            found.append((held, measure.format(**sizes)))
    return [text for _, text in sorted(found, reverse=True)]


_MEASURES = {
    ACTIVATIONS: "activations hold {size}: half the batch with twice the accumulation leaves {half}, gradient "
    "checkpointing less than that, sdpa attention and bf16 autocast where they are not used yet",
    STATES: "optimizer states hold {size}: AdamW with 8-bit states {eight} (by formula), SGD without momentum none; "
    "they can lie on the host",
    GRADIENTS: "gradients hold {size}: zero_grad(set_to_none=True) before the forward pass, a step in backward "
    "(register_post_accumulate_grad_hook), or bf16 weights with half of it",
    PARAMETERS: "parameters hold {size}: bf16 or fp16 weights take {half} if they are float32 now; LoRA leaves their "
    "gradients and states away",
    TEMPORARIES: "temporaries hold {size}: look at who asked for them; a fused kernel (sdpa, a fused loss, "
    "foreach=False in the optimizer) or less at a time makes them smaller",
}
