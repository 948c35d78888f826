"""How a model is trained, or served: everything that decides its memory, beside the model itself."""

from dataclasses import dataclass

import torch

DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
}
OPTIMIZERS = ("adamw", "adamw-fused", "adamw-8bit", "adam", "sgd", "sgd-momentum", "adafactor")
BY_FORMULA = ("adamw-8bit",)
CHECKPOINTS = (False, True, "half")


@dataclass(frozen=True)
class Plan:
    """One way of training (`train` an optimizer's name) or of serving (`train` None).

    `dtype` of the weights, None for the model's own; `autocast` to a dtype around the forward pass, or None; `batch`
    and `length` of a micro-batch; `accumulate`: micro-batches a step; `lora`: the adapters' rank, or None;
    `checkpoint`: False, True (each layer), or "half" (every second one); `offload`: activations wait on the host;
    `attention`: "eager", "sdpa" or None, as the model has it; `four_bit`: frozen weights of linear layers in 4 bits
    (by formula). Raises ValueError for what none of it is.
    """

    train: str | None = "adamw"
    dtype: str | None = None
    batch: int = 1
    length: int | None = None
    accumulate: int = 1
    autocast: str | None = None
    lora: int | None = None
    checkpoint: bool | str = False
    offload: bool = False
    attention: str | None = None
    four_bit: bool = False

    def __post_init__(self):
        for name in ("batch", "length", "accumulate", "lora"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} is a whole number of 1 or more, not {value!r}")
        for name, known in (("dtype", DTYPES), ("autocast", DTYPES)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ValueError(f"{name} is one of {', '.join(known)}, not {value!r}")
        if self.train is not None and self.train not in OPTIMIZERS:
            raise ValueError(f"train is one of {', '.join(OPTIMIZERS)}, not {self.train!r}")
        if self.checkpoint not in CHECKPOINTS:
            raise ValueError(f'checkpoint is False, True or "half", not {self.checkpoint!r}')
        if self.four_bit and self.lora is None:
            raise ValueError("weights of 4 bits are frozen: say the rank of LoRA's adapters too")

    def __str__(self) -> str:
        """The plan in words: "adamw, bf16, batch 8 × 2048, LoRA 16, checkpoints"."""
        size = f"batch {self.batch}" + (f" × {self.length}" if self.length else "")
        parts = [self.train or "inference", *([self.dtype] if self.dtype else []), size]
        parts += [f"{self.accumulate} accumulated"] if self.accumulate > 1 else []
        parts += [f"autocast {self.autocast}"] if self.autocast else []
        parts += [f"{'QLoRA' if self.four_bit else 'LoRA'} {self.lora}"] if self.lora else []
        parts += {True: ["checkpoints"], "half": ["checkpoints of every second layer"]}.get(self.checkpoint, [])
        parts += ["activations on the host"] if self.offload else []
        parts += [f"{self.attention} attention"] if self.attention else []
        return ", ".join(parts)
