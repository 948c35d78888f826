"""Findings about a run: what its memory shows that the sizes alone do not, each with its evidence and a remedy.

Each function below looks for one of them in the `Facts` of a run; `findings` calls them in the order of the page.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simgpu.report.checkpointing import ERROR
from simgpu.report.owners import ACTIVATIONS, GATHERED, GRADIENTS, PARAMETERS, STATES, TEMPORARIES
from simgpu.report.replays import Attempt
from simgpu.report.sizes import MIB, rough, share, size

if TYPE_CHECKING:
    from simgpu.report.checkpointing import Estimate
    from simgpu.report.growth import Grown
    from simgpu.report.report import Line, Report

CACHE = "cache (reserved, not allocated)"
"""The part of the reserved memory that is not allocated."""

SMALL = 0.03
"""Share of the reserved memory below which a part or a line is not worth a remedy."""

CACHE_SHARE, CACHE_LEAST = 0.15, 32 * MIB
"""Share of the reserved memory, and bytes, from which the cache counts as fragmentation."""

BLOCKWISE = (2 + 8 / 256) / 8
"""Size of AdamW's two states in 8 bits, with a float32 scale per block of 256, relative to two in float32."""

SCORES = ("_safe_softmax", "_softmax", "softmax", "SafeSoftmaxBackward0", "SoftmaxBackward0")
LOSS = ("_log_softmax", "LogSoftmaxBackward0", "NllLossBackward0", "nll_loss", "CrossEntropyLossBackward0")
COPIES = ("clone", "contiguous", "CloneBackward0")


def fragmented(parts: dict[str, int], reserved: int, peak: int, ran_out: bool) -> bool:
    """Returns whether the cache (in bytes) is large enough for replays under other settings to be worth their time."""
    return max(parts.get(CACHE, 0) if ran_out else 0, reserved - peak) >= CACHE_LEAST


@dataclass(frozen=True)
class Finding:
    """One finding: its name, what was found, the bytes it concerns, the program's lines, and what helps."""

    name: str
    text: str
    nbytes: int
    lines: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        at = f" ({', '.join(self.lines)})" if self.lines else ""
        return f"{self.text}{at}." + (f" {self.remedy}." if self.remedy else "")


@dataclass
class Facts:
    """What is known of a run when its report is made. Sizes in bytes.

    `missing`: of the failed request, None if memory did not run out. `model`: of all parameters and buffers of the
    module that was being moved when it ran out, `building`: whether one was being moved or built. `dtypes`: bytes of
    the parameters by dtype. `attention`: calls of the math backend by why the fused ones refused. `fused_attention`:
    whether a fused backend ran. `attempts`: replays under other settings. `steps`: bytes allocated and reserved after
    each optimizer step. `checkpointing`: whether modules ran in backward again. `checkpoints`: what it would save,
    where it may help and is not used.
    """

    capacity: int
    peak: int
    reserved: int
    parts: dict[str, int]
    lines: tuple[Line, ...]
    stage: str = ""
    missing: int | None = None
    cache: int = 0
    model: int = 0
    building: bool = False
    dtypes: Counter = field(default_factory=Counter)
    autocast: bool = False
    attention: Counter = field(default_factory=Counter)
    fused_attention: bool = False
    grown: list[Grown] = field(default_factory=list)
    grown_per: str = "optimizer step"
    attempts: list[Attempt] = field(default_factory=list)
    steps: tuple[tuple[int, int], ...] = ()
    checkpointing: bool = False
    checkpoints: Estimate | None = None

    @classmethod
    def from_report(cls, report: Report, **seen) -> Facts:
        """Returns the facts that a report holds, with those that were `seen` while the program ran."""
        return cls(
            capacity=report.total_memory - report.context,
            peak=report.peak,
            reserved=report.reserved,
            parts=report.parts,
            lines=report.lines,
            stage=report.at.stage if report.at else "",
            missing=max(0, report.failure[0] - report.failure[1]) if report.failure else None,
            cache=report.parts.get(CACHE, 0),
            **seen,
        )

    @property
    def whole(self) -> int:
        """All reserved bytes at the moment that the parts describe."""
        return sum(self.parts.values())

    def of(self, operators: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
        """Returns bytes of activations and temporaries of some operators, and the program's lines, the largest first.

        What a hook of their backward allocates, such as the parameters that FSDP gathers there, is not theirs.
        """
        chosen = [
            one
            for one in self.lines
            if one.part in (ACTIVATIONS, TEMPORARIES) and one.operator.split(" ")[0].rstrip(",") in operators
        ]
        return sum(one.nbytes for one in chosen), _places(chosen)

    @property
    def too_large(self) -> bool:
        """Returns whether the model alone exceeds the GPU."""
        return self.missing is not None and self.model > self.capacity


def _places(lines) -> tuple[str, ...]:
    """Up to two of the program's lines."""
    return tuple(dict.fromkeys(one.place or one.library for one in lines if one.place or one.library))[:2]


def findings(facts: Facts) -> tuple[Finding, ...]:
    """All findings about a run."""
    return tuple(one for look in LOOKS for one in look(facts))


def the_model(facts: Facts) -> Iterator[Finding]:
    """The model alone is larger than the GPU, or memory ran out while it was being built."""
    if facts.too_large:
        cards = math.ceil(facts.model / facts.capacity)
        half = f"bfloat16 weights are {size(facts.model // 2)}; " if _mostly_float32(facts) else ""
        yield Finding(
            "model larger than the GPU",
            f"the model's parameters and buffers alone are {size(facts.model)}, and a GPU of this capacity leaves "
            f"{size(facts.capacity)} for PyTorch",
            facts.model,
            (),
            f"{half}sharding (FSDP2) takes at least {cards} GPUs for the parameters alone; 4-bit weights with LoRA "
            "take about a quarter of bfloat16's bytes",
        )
    elif facts.building and facts.missing is not None:
        yield Finding(
            "model not complete",
            f"memory ran out while the model was being built or moved, with {size(facts.parts.get(PARAMETERS, 0))} of "
            "parameters and buffers on the GPU",
            facts.parts.get(PARAMETERS, 0),
            (),
            "Its size decides, not the batch: "
            + ("bfloat16 weights halve it, " if _mostly_float32(facts) else "")
            + "simgpu fit gives the whole of it, and --ranks shards it",
        )


def missing(facts: Facts) -> Iterator[Finding]:
    """How much was missing for the request that failed."""
    if facts.missing is not None and not facts.too_large and not facts.building:
        yield Finding(
            "missing memory",
            f"{size(facts.missing)} are missing for this one request",
            facts.missing,
            (),
            "How much the whole run would use, a run with a larger --memory shows",
        )


def fragmentation(facts: Facts) -> Iterator[Finding]:
    """Reserved memory that is not allocated, and the settings that reduce it, as replays of the requests measured."""
    if facts.too_large or facts.building:
        return
    if facts.missing is not None:
        cache, whole = facts.cache, facts.whole
        if cache < max(facts.missing, 1):
            return
        text = (
            f"the cache holds {size(cache)}, which is {share(cache, whole)} of the reserved memory and at least what "
            "is missing, but in pieces that are too small for the request (fragmentation)"
        )
        better = [one for one in facts.attempts if one.served]
        if better:
            remedy = f"With PYTORCH_CUDA_ALLOC_CONF={better[0].settings} the request is served (a replay of the run)"
        elif facts.attempts:
            remedy = f"None of {', '.join(one.settings for one in facts.attempts)} would serve it (a replay of the run)"
        else:
            remedy = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may join the pieces: run it again with that set"
        yield Finding("fragmentation", text, cache, (), remedy)
        return
    cache = facts.reserved - facts.peak
    if cache < max(CACHE_SHARE * facts.reserved, CACHE_LEAST):
        return
    text = (
        f"at most {size(facts.reserved)} were reserved for at most {size(facts.peak)} allocated, so the cache makes up "
        f"{share(cache, facts.reserved)} (fragmentation)"
    )
    if len(facts.steps) > 2 and facts.steps[-1][1] > facts.steps[0][1] and facts.steps[-1][0] <= facts.steps[0][0]:
        grown = facts.steps[-1][1] - facts.steps[0][1]
        text += f"; reserved memory grew by {size(grown)} over {len(facts.steps)} steps, and allocated memory did not"
    better = sorted(
        (one for one in facts.attempts if one.reserved < 0.98 * facts.reserved), key=lambda one: one.reserved
    )
    if better:
        found = ", ".join(f"{one.settings} reserves {size(one.reserved)}" for one in better)
        remedy = f"PYTORCH_CUDA_ALLOC_CONF helps: {found} (replays of the run)"
    elif facts.attempts:
        remedy = f"Neither {' nor '.join(one.settings for one in facts.attempts)} reduces it (replays of the run)"
    else:
        remedy = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may reduce it: run it again with that set"
    yield Finding("fragmentation", text, cache, (), remedy)


def math_attention(facts: Facts) -> Iterator[Finding]:
    """scaled_dot_product_attention ran its math backend, which stores all scores, and why."""
    if not facts.attention:
        return
    nbytes, places = facts.of(SCORES)
    reason, _ = facts.attention.most_common(1)[0]
    calls = facts.attention.total()
    yield Finding(
        "attention by the math backend",
        f"scaled_dot_product_attention ran its math backend in {calls:,} call{'s' * (calls != 1)}, which stores the "
        f"attention scores" + (f" ({size(nbytes)} of softmax at the peak)" if nbytes else "") + f"; {reason}",
        nbytes,
        places,
        _for_fused(reason),
    )


def _for_fused(reason: str) -> str:
    """What would let a fused backend run."""
    if "switched off" in reason:
        return "Fused backends are switched off by sdpa_kernel or torch.backends.cuda.enable_*_sdp: switch one on"
    if "not bfloat16" in reason:
        return "float16 instead of bfloat16, or a GPU of compute capability 8.0, has a fused kernel"
    if "last dimension is not contiguous" in reason:
        return "Make the last dimension of query, key, value and mask contiguous"
    if "not aligned" in reason or "multiples of" in reason:
        return "Pad the head size to a multiple of 8"
    if "heads" in reason and "differ" in reason:
        return "Repeat keys and values to as many heads as the query has, or use enable_gqa with float16 or bfloat16"
    if "dimensions" in reason:
        return "Give query, key and value 4 dimensions: batch, heads, sequence, head size"
    if "not float32" in reason or "not float64" in reason:
        return "Autocast, or weights in bfloat16 or float16, has a fused kernel"
    return "A fused kernel would not store the scores"


def eager_attention(facts: Facts) -> Iterator[Finding]:
    """A softmax of attention scores that no scaled_dot_product_attention computes."""
    nbytes, places = facts.of(SCORES)
    if facts.attention or facts.fused_attention or nbytes < max(0.1 * facts.whole, 1):
        return
    yield Finding(
        "attention scores",
        f"softmax holds {size(nbytes)} at the peak",
        nbytes,
        places,
        "If these are attention scores, scaled_dot_product_attention (attn_implementation='sdpa') does not store them",
    )


def growth(facts: Facts) -> Iterator[Finding]:
    """Finds what each step leaves alive."""
    for one in facts.grown:
        many = "one more block" if one.blocks == 1 else f"{one.blocks} more blocks"
        held = f", held by {one.holder}" if one.holder else ""
        place = str(one.origin.place or "")
        yield Finding(
            "memory grows",
            f"each {facts.grown_per} leaves {many} ({size(one.nbytes)}) of {one.origin} alive{held}",
            one.nbytes,
            (place,) if place else (),
            "Keep numbers instead of tensors (.item() or .detach().cpu()), and drop what the next step does not need",
        )


def copies(facts: Facts) -> Iterator[Finding]:
    """Copies of tensors that are not contiguous, or of expanded ones."""
    chosen = [
        one
        for one in facts.lines
        if one.part not in (PARAMETERS, STATES)
        and ("contiguous copy" in one.operator or one.operator.split(" ")[0] in COPIES)
        and one.nbytes >= max(SMALL * facts.whole, MIB)
    ]
    if chosen:
        nbytes = sum(one.nbytes for one in chosen)
        yield Finding(
            "copy of an input",
            f"{chosen[0].operator} holds {size(nbytes)}: a copy of a tensor that is strided or expanded",
            nbytes,
            _places(chosen),
            "An operator copies what it cannot read with those strides. Of a matmul whose batch is expanded, fold the "
            "batch into the rows (or use a 2-D matrix); make a transposed tensor contiguous once, before the loop",
        )


def logits(facts: Facts) -> Iterator[Finding]:
    """The loss over a vocabulary is what peaks."""
    nbytes, places = facts.of(LOSS)
    if nbytes >= max(0.15 * facts.whole, MIB):
        yield Finding(
            "logits",
            f"the loss holds {size(nbytes)} at the peak, beyond the logits themselves: log-probabilities and gradients "
            "of every token and class",
            nbytes,
            places,
            "A chunked or fused cross-entropy (Liger, cut-cross-entropy, or the head and the loss over chunks of "
            "tokens in a checkpoint) never has all of them at once",
        )


_STAGES = {"optimizer step": "the optimizer's step, which no checkpoint lowers"}


def checkpoints(facts: Facts) -> Iterator[Finding]:
    """What activation checkpointing would save, or that it is on and does not help where the peak is.

    The estimate is that of `simgpu.report.checkpointing`, which says how far it was from runs with checkpoints.
    """
    if facts.checkpointing:
        yield from _checkpoints_elsewhere(facts)
        return
    found = facts.checkpoints
    if found is None or found.nbytes < max(SMALL * facts.whole, MIB):
        return
    saved = facts.parts[ACTIVATIONS]
    if found.at_least:
        estimate = (
            f"would have freed about {rough(found.nbytes)} of them when memory ran out (an estimate; a lower bound, "
        )
        estimate += "because more of them were still to come)"
    else:
        error = rough(round(ERROR * found.peak))
        estimate = (
            f"would lower the peak by about {rough(found.nbytes)} to {rough(found.peak)} (±{error}, an estimate from "
        )
        estimate += (
            f"this run's allocations and frees); the peak would then be in {_STAGES.get(found.stage, found.stage)}"
        )
    yield Finding(
        "activation checkpointing",
        f"saved activations are the largest part ({size(saved)}), and no activation checkpointing is on. Checkpointing "
        f"each of the {found.modules} modules of class {found.kind} {estimate}",
        found.nbytes,
        (),
        "torch.utils.checkpoint.checkpoint around each of them (gradient_checkpointing_enable() in transformers) saves "
        "only their inputs, and computes their forward again in backward",
    )


def _checkpoints_elsewhere(facts: Facts) -> Iterator[Finding]:
    of_loss, places = facts.of(LOSS)
    if facts.stage == "optimizer step":
        where, nbytes, remedy = "optimizer's step", facts.parts.get(STATES, 0), _of_temporaries(facts, 0)
    elif of_loss > SMALL * facts.whole:
        where, nbytes = "loss", of_loss
        remedy = "A chunked or fused cross-entropy lowers this peak"
    else:
        return
    yield Finding(
        "activation checkpointing",
        f"activation checkpointing is on, and the peak is in the {where}, where it does not help",
        nbytes,
        places if where == "loss" else (),
        remedy,
    )


def parts(facts: Facts) -> Iterator[Finding]:
    """What would make each part smaller, where memory ran out. The largest part comes first."""
    if facts.missing is None or facts.too_large:
        return
    yield from of_parts(facts)


def of_parts(facts: Facts) -> Iterator[Finding]:
    """What would make each of the parts smaller."""
    remedies = {
        ACTIVATIONS: _of_activations,
        STATES: _of_states,
        GRADIENTS: _of_gradients,
        PARAMETERS: _of_parameters,
        GATHERED: _of_gathered,
        TEMPORARIES: _of_temporaries,
    }
    held = sorted(((facts.parts.get(part, 0), part) for part in remedies), reverse=True)
    for nbytes, part in held:
        if nbytes > SMALL * facts.whole:
            yield Finding(part, f"{part} hold {size(nbytes)}", nbytes, (), remedies[part](facts, nbytes))


def _mostly_float32(facts: Facts) -> bool:
    return facts.dtypes["float32"] > sum(facts.dtypes.values()) / 2


def _of_activations(facts: Facts, nbytes: int) -> str:
    halves = ", and bfloat16 autocast halves most of them" if _mostly_float32(facts) and not facts.autocast else ""
    return f"Half the batch with twice the accumulation leaves {size(nbytes // 2)}, gradient checkpointing less{halves}"


def _of_states(facts: Facts, nbytes: int) -> str:
    text = "SGD without momentum has none, and they can be kept on the host"
    if _mostly_float32(facts):
        text = f"8-bit states of AdamW are {size(round(nbytes * BLOCKWISE))} (by formula); {text}"
    return text


def _of_gradients(facts: Facts, nbytes: int) -> str:
    half = f", and bfloat16 weights have {size(nbytes // 2)} of them" if _mostly_float32(facts) else ""
    return (
        "zero_grad(set_to_none=True) before the forward pass, or an optimizer step in backward "
        f"(register_post_accumulate_grad_hook), frees them earlier{half}"
    )


def _of_parameters(facts: Facts, nbytes: int) -> str:
    if _mostly_float32(facts):
        return (
            f"They are float32, and bfloat16 weights are {size(nbytes // 2)}; LoRA has almost no gradients and states"
        )
    return "LoRA has almost no gradients and states; 4-bit weights are about a quarter of 16-bit ones"


def _of_gathered(facts: Facts, nbytes: int) -> str:
    return (
        "FSDP gathers one group of parameters at a time, and the next in advance: smaller groups (fully_shard on each "
        "block) and reshard_after_forward=True hold fewer of them, and a param_dtype of bfloat16 halves float32 ones"
    )


def _of_temporaries(facts: Facts, nbytes: int) -> str:
    if facts.stage == "optimizer step":
        return "The optimizer's own: fused=True updates the parameters without them, and foreach=False one at a time"
    return "The lines above allocate them: a fused kernel, or less at a time, makes them smaller"


LOOKS = (the_model, missing, fragmentation, growth, math_attention, eager_attention, logits, checkpoints, copies, parts)
