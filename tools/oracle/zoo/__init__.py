"""Model zoos and frameworks as workloads: foreign code on "cuda", run alike on the oracle and on the simulated GPU.

`python -m tools.oracle zoo` compares them. A name is FAMILY-MODEL-DTYPE, with `-padded` where there is a padding mask:
`transformers-bert-bf16-padded`, `timm-resnet18-fp32`, `frameworks-peft_lora-bf16`.
"""

from __future__ import annotations

from tools.oracle.zoo.families import FAMILIES, Entry, find, names

__all__ = ["FAMILIES", "Entry", "find", "names"]
