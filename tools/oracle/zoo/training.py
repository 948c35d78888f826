"""The two training steps of the zoo, for any model whose inputs are named tensors."""

from __future__ import annotations

from contextlib import nullcontext

import torch

LOWER = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(dtype: str):
    """The region of autocast("cuda") that a dtype of the zoo means; none for fp32."""
    return torch.autocast("cuda", dtype=LOWER[dtype]) if dtype in LOWER else nullcontext()


def tensors_in(output):
    """The tensors of a model's output, whatever it is made of, in order."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from tensors_in(value)


def loss_of(output) -> torch.Tensor:
    """The model's own loss, or else the mean square of the first result that wants a gradient."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        return loss if loss.dim() == 0 else loss.mean()
    first = next(one for one in tensors_in(output) if one.requires_grad and one.dtype.is_floating_point)
    return first.float().pow(2).mean()


def on_gpu(inputs):
    """The inputs, made on the host, on the GPU."""
    if isinstance(inputs, torch.Tensor):
        return inputs.to("cuda")
    if isinstance(inputs, dict):
        return {name: on_gpu(value) for name, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return type(inputs)(on_gpu(value) for value in inputs)
    return inputs


def two_steps(stage, model, inputs: dict, dtype: str, cudnn: bool = False, clip: bool = True) -> None:
    """Two steps of AdamW with clipped gradients, then an evaluation.

    `model` is moved to the GPU as scripts do it. Convolutions run without cuDNN unless `cudnn`: what it takes for
    itself only a GPU can tell.
    """
    with torch.backends.cudnn.flags(enabled=cudnn):
        model = model.to("cuda").train()
        stage("model")
        inputs = on_gpu(inputs)
        stage("inputs")
        wanted = [one for one in model.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(wanted, lr=1e-3)
        for step in range(2):
            with autocast(dtype):
                loss = loss_of(model(**inputs))
            stage(f"forward {step}")
            loss.backward()
            stage(f"backward {step}")
            if clip:
                torch.nn.utils.clip_grad_norm_(wanted, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            del loss
            stage(f"step {step}")
        with torch.no_grad(), autocast(dtype):
            model.eval()(**inputs)
        stage("evaluation")
