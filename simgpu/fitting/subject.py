"""A model and its batches, from a configuration of transformers, a name of timm or torchvision, or functions."""

import copy
import difflib
import importlib
import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from simgpu.running import builds


@dataclass(frozen=True)
class Subject:
    """Describes a model and its batches.

    `build(dtype)` creates the model on the default device. `batch(size, length)` creates the arguments of one call on
    the host, a dictionary of tensors. `loss(outputs, batch)` is a scalar. `length`: the default length, None for a
    model without one. `longest`: the most that the model accepts. `cache`: bytes of the KV cache per token, or None.
    `own_loss`: whether the caller gave the loss. `transformers`: whether it is a model of that library. `source`: the
    path or name from which a different process makes it again, None for an object. `config`: of transformers, that of
    the text model.
    """

    name: str
    build: Callable[[torch.dtype | None], nn.Module]
    batch: Callable[[int, int | None], dict[str, Any]]
    loss: Callable[[Any, dict], torch.Tensor]
    length: int | None = None
    longest: int | None = None
    cache: int | None = None
    own_loss: bool = False
    transformers: bool = False
    source: str | None = None
    config: Any = None

    def check(self, length: int | None) -> None:
        """Raises ValueError for a length if the model has none, or for one longer than it accepts."""
        if length is not None and self.length is None:
            raise ValueError(f"{self.name} has no length: its inputs have a size of their own")
        if length is not None and self.longest is not None and length > self.longest:
            raise ValueError(f"{self.name} takes {self.longest} tokens at most, not {length}")


def subject_of(model, batch=None, loss=None) -> Subject:
    """Returns the subject of a config.json or its folder, a name, a configuration, a module, or a function that creates
    one.

    `batch`: for modules and functions, a function of the batch size, or a tensor or dictionary for one size. For a
    configuration or a name, `batch` and `loss` replace its own. Raises ValueError for anything else.
    """
    if isinstance(model, Subject):
        return model
    if isinstance(model, (str, Path)):
        place = Path(model)
        found = _of_file(place) if place.exists() or place.suffix == ".json" else _of_name(str(model))
        own = batch is not None or loss is not None
        found = replace(found, source=None if own else str(place.resolve() if place.exists() else model))
        return _with_own(found, batch, loss)
    if hasattr(model, "model_type") and hasattr(model, "to_dict"):
        return _with_own(of_config(model), batch, loss)
    if callable(model):
        return _of_functions(model, batch, loss)
    raise ValueError(
        f"{model!r:.60} is no model; wanted a config.json, a name of timm or torchvision, a module, or a function"
    )


def _of_functions(model, batch, loss) -> Subject:
    if batch is None or isinstance(batch, int):
        raise ValueError("a module or a function wants inputs=: a function of the batch's size, or its tensors")
    name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "the model")
    name = name.replace("<lambda>", "the model")

    def build(dtype):
        made = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        return made if dtype is None else made.to(dtype)

    return Subject(name, build, _batches(batch), loss or _any_loss)


def _batches(given):
    """Returns the arguments of a call, from a function of the batch size, or from a tensor or dictionary for one
    size.
    """

    def batches(size, length):
        found = given(size) if callable(given) else given
        return found if isinstance(found, dict) else {"": found}

    return batches


def _with_own(subject: Subject, batch, loss) -> Subject:
    """Returns the subject with the caller's batch or loss in place of its own. Such a batch has no length."""
    changed: dict[str, Any] = {} if loss is None else {"loss": loss, "own_loss": True}
    if batch is not None:
        changed |= {"batch": _batches(batch), "length": None}
    return replace(subject, **changed) if changed else subject


def _any_loss(outputs, batch):
    """Returns the loss that the model computes, or the mean of its first tensor."""
    found = getattr(outputs, "loss", None)
    if found is not None:
        return found
    while not isinstance(outputs, torch.Tensor):
        outputs = next(iter(outputs.values())) if isinstance(outputs, dict) else outputs[0]
    return outputs.float().mean()


# --- transformers ------------------------------------------------------------------------------------


def _of_file(place: Path, name: str | None = None) -> Subject:
    """Returns the subject of a config.json or of the folder that contains one, called `name`.

    Raises ValueError if it is not a configuration that transformers or timm accepts.
    """
    if place.is_dir():
        if not (place / "config.json").exists():
            raise ValueError(f"the folder {str(place)!r} has no config.json{_contents(place)}")
        place = place / "config.json"
    found = _read(place)
    name = name or (place.parent.resolve().name if place.name == "config.json" else place.stem)
    if "model_type" not in found:
        if isinstance(found.get("architecture"), str):  # timm's configurations on the Hub
            return replace(_of_name(found["architecture"]), name=name)
        if isinstance(found.get("text_config"), dict) or "base_model_name_or_path" in found:
            raise ValueError(f"{str(place)!r} has no model_type; wanted the config.json of the whole base model")
        raise ValueError(f"{str(place)!r} has no model_type, so it is not a configuration of transformers")
    kind = found["model_type"]
    transformers = _library("transformers")
    known = list(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)
    if kind not in known:
        near = difflib.get_close_matches(str(kind), known, n=2)
        guess = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        own = "; its model is code of its own (auto_map), which fit does not run" if "auto_map" in found else guess
        raise ValueError(f"transformers {transformers.__version__} knows no model_type {kind!r}{own}")
    try:
        config = transformers.AutoConfig.for_model(**found)
    except Exception as error:  # each configuration raises its own errors
        raise ValueError(f"transformers refuses {str(place)!r}: {type(error).__name__}: {error}") from None
    return replace(of_config(config), name=name)


def _read(place: Path) -> dict:
    """Returns the object in a JSON file. Raises ValueError with the place where the file is broken."""
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{str(place)!r} cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{str(place)!r} is broken JSON: {error.msg} at {where}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{str(place)!r} is not JSON in UTF-8: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{str(place)!r} holds a JSON {type(found).__name__}; wanted an object with a model_type")
    return found


def _contents(folder: Path) -> str:
    """Returns the end of a message that says what a folder contains instead."""
    if any(folder.glob("adapter_config.json")):
        return ": it holds an adapter; wanted the folder of the base model, and --lora RANK"
    near = sorted(one.parent.name for one in folder.glob("*/config.json"))
    return f"; did you mean {str(folder / near[0])!r}?" if near else ""


REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""Pattern of a model name on the Hugging Face Hub."""


def _in_hub_cache(name: str) -> Path | None:
    """Returns the config.json of a model on the Hub, if an earlier download left it on this machine."""
    if not REPOSITORY.fullmatch(name) or importlib.util.find_spec("huggingface_hub") is None:
        return None
    hub = importlib.import_module("huggingface_hub")
    try:
        found = hub.try_to_load_from_cache(name, "config.json")
    except ValueError:  # the Hub has further rules for names
        return None
    return Path(found) if isinstance(found, str) else None


def _library(name: str):
    if importlib.util.find_spec(name) is None:
        raise ValueError(f"this needs {name}, which is not installed")
    return importlib.import_module(name)


def of_config(config) -> Subject:
    """Returns the subject of a transformers configuration: its first architecture, by default a causal language model.

    A configuration that fits neither gets the base model of AutoModel.
    """
    transformers = _library("transformers")
    named = (getattr(config, "architectures", None) or [""])[0]
    kind = getattr(transformers, named, None)
    if kind is None:
        causal = type(config) in transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
        kind = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
    make = kind.from_config if named == "" or not hasattr(kind, "_from_config") else kind._from_config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    own = getattr(config, "dtype", None) or torch.float32
    images = hasattr(config, "image_size") and not hasattr(text, "vocab_size")

    def build(dtype):
        return make(copy.deepcopy(config), dtype=dtype or own)  # a plan may change it

    def batch(size, length):
        if images:
            side = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
            inputs = {"pixel_values": _zeros(size, getattr(config, "num_channels", 3), side, side)}
            classes = (size,)
        else:
            inputs = {"input_ids": torch.zeros(size, length, dtype=torch.long)}
            classes = (size, length) if "Sequence" not in named else (size,)
        headless = kind is transformers.AutoModel or named.endswith("Model")
        return inputs if headless else {**inputs, "labels": torch.zeros(classes, dtype=torch.long)}

    longest = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    decoder = "CausalLM" in (named or kind.__name__) or "LMHead" in named
    length = None if images else min(longest or 512, 2048)
    cache = _cache(text, own) if decoder and not images else None
    return Subject(config.model_type, build, batch, _any_loss, length, longest, cache, transformers=True, config=text)


def _cache(config, dtype: torch.dtype) -> int | None:
    """Returns the bytes of keys and values per token of a request: 2 · layers · key heads · head size, or None."""
    try:
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 2 * config.num_hidden_layers * heads * width * dtype.itemsize
    except (AttributeError, TypeError):
        return None


# --- timm and torchvision ------------------------------------------------------------------------------


def _of_name(name: str) -> Subject:
    # the page of a model on the Hub
    page = re.match(r"https?://[^/]+/([^/?#]+(?:/(?!(?:tree|blob|resolve)/)[^/?#]+)?)", name)
    name = page[1] if page else name
    makers = {"timm": _timm, "torchvision": _torchvision}
    tried = []
    for library, make in makers.items():
        if importlib.util.find_spec(library) is None:
            tried.append(f"{library} (not installed)")
            continue
        try:
            found = make(importlib.import_module(library), name)
        except Exception as error:  # a library that does not load is treated as missing
            tried.append(f"{library} (does not load: {type(error).__name__}{_why(library, error)})")
            continue
        if found is not None:
            return found
        tried.append(library + _near(library, name))
    cached = _in_hub_cache(name)
    if cached is not None:
        return _of_file(cached, name.rpartition("/")[2])
    searched = f"no file and no model {name!r}; searched {', '.join(tried)} and this machine's Hub cache"
    if REPOSITORY.fullmatch(name):
        searched += (
            f". fit downloads nothing; if it is a model of the Hub, get its configuration with: hf download {name} "
            "config.json"
        )
    raise ValueError(searched)


def _near(library: str, name: str) -> str:
    """Returns the models of a library with the most similar names, for a message."""
    module = importlib.import_module(library)
    known = module.list_models() if library == "timm" else module.models.list_models(module=module.models)
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.8)
    return f" (which has {' and '.join(near)})" if near else ""


def _why(library: str, error: Exception) -> str:
    """Returns advice for torchvision's usual error, for the end of a message."""
    return f"; {advice}" if (advice := builds.advice(error)) else ""


def _timm(timm, name: str) -> Subject | None:
    if name not in timm.list_models():
        return None
    size = timm.create_model(name, pretrained=False).default_cfg["input_size"]
    return _of_images(name, lambda: timm.create_model(name, pretrained=False), size)


def _torchvision(torchvision, name: str) -> Subject | None:
    if name not in torchvision.models.list_models(module=torchvision.models):
        return None
    return _of_images(name, lambda: torchvision.models.get_model(name, weights=None), (3, 224, 224))


def _zeros(*size: int) -> torch.Tensor:
    """Returns zeros in host memory that is not written: NumPy requests zeroed memory, so a large batch costs no
    time.
    """
    return torch.from_numpy(np.zeros(size, np.float32)).to(torch.get_default_dtype())


def _of_images(name, make, size) -> Subject:
    def build(dtype):
        made = make()
        return made if dtype is None else made.to(dtype)

    def batch(number, length):
        return {"": _zeros(number, *size), "target": torch.zeros(number, dtype=torch.long)}

    return Subject(name, build, batch, lambda outputs, given: nn.functional.cross_entropy(outputs, given["target"]))
