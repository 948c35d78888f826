"""Snippets by which rules are compared with the oracle, drawn at random: a module for each family of rules.

A module has `COUNT`, how many snippets it draws for a GPU, and `draw`, which returns one, or `DRAWINGS`, functions of
which one is chosen for each.
"""

import importlib
import pkgutil
import random
from collections.abc import Callable

FAMILIES = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def of(family: str) -> tuple[int, Callable[[random.Random], str]]:
    """Returns how many snippets of a family are drawn for a GPU, and the function that draws one."""
    module = importlib.import_module(f"{__name__}.{family}")
    return module.COUNT, getattr(module, "draw", None) or (lambda rng: rng.choice(module.DRAWINGS)(rng))
