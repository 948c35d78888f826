"""What report.json and --json contain: `python -m tools.report_json` writes docs/report_json.md and its JSON schema.

Types are read from the dataclasses, so the page and the schema follow them. Each field needs a description here.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path

from simgpu.clock.estimates import TimeEstimate
from simgpu.report.files import File
from simgpu.report.findings import Finding
from simgpu.report.modules import Module
from simgpu.report.report import Line, Report, Spot
from simgpu.report.speed import Speed
from simgpu.report.stored import SCHEMA
from simgpu.report.track import Track

DOCS = Path(__file__).parents[1] / "docs"
PAGE, FILE = DOCS / "report_json.md", DOCS / "report_schema.json"

DERIVED = {
    "schema": ({"const": SCHEMA}, "the version of this document"),
    "outcome": (
        {"enum": ["fits", "does not fit", "failed", "undecided"]},
        "the verdict in a word, as [Will it fit?](will_it_fit.md) defines it",
    ),
    "status": ({"enum": [0, 1, 2, 3]}, "the exit status that belongs to the outcome"),
    "verdict": (
        {
            "type": "object",
            "properties": {
                "reason": {"type": "string"},
                "spare": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "uncertainty": {"type": "integer"},
                "set_aside": {"type": "integer"},
                "margin": {"anyOf": [{"$ref": "#/$defs/Margin"}, {"type": "null"}]},
            },
            "required": ["reason", "spare", "uncertainty", "set_aside", "margin"],
        },
        "`reason`: why the outcome is undecided, or what is set aside; `spare`: bytes to spare, null for a run that "
        "did not complete; `uncertainty`: bytes by which `spare` may differ on a real GPU; `set_aside`: bytes of it "
        "for what is not modelled; `margin`: what `spare` is the sum of (below), null for a run that did not complete",
    ),
}
"""Fields of a report that follow from the others."""

FIELDS: dict[type, dict[str, str]] = {
    Report: {
        "what": "the script, the module, or the model and its plan",
        "gpu": "the simulated GPU",
        "torch": "the version of PyTorch that ran",
        "total_memory": "bytes of the GPU's memory",
        "context": "bytes of the CUDA context, a published figure",
        "ending": '"completed", "out of memory" or "stopped" (by a different error)',
        "peak": "the most bytes that were allocated",
        "reserved": "the most bytes of all segments of PyTorch's allocator",
        "nvidia_smi": "the most bytes that nvidia-smi would show, with the context",
        "at": "where the peak is, or where memory ran out",
        "parts": "bytes by kind at that moment; their sum is what was reserved",
        "lines": "the same bytes by line, without the cache, the largest first",
        "unmodeled": "what the figures do not include",
        "steps": "optimizer steps that were made",
        "seconds": "seconds on the simulated clock, from which `time` is estimated",
        "ended": "how the program ended, in words",
        "failure": "bytes of the request that failed, bytes that were free, and PyTorch's message",
        "caught": "failed allocations whose error the program caught",
        "placeholder_values": "values that were answered as 0: what read them, the line, how often",
        "sizes": "those of them that decide a size, and whether the size used is the smallest possible",
        "branches": "those of them that decide a branch",
        "files": "files that the program wrote, changed or removed",
        "values": "whether tensors had values",
        "simulated": "always true: no GPU was used",
        "written": "the lines of the page that name the files of `--out`",
        "notes": "further sentences about what is not modelled",
        "rank": "the rank, and of how many",
        "traffic": "collectives by kind: how many, bytes of their messages, bytes that this rank sent",
        "not_in_nvidia_smi": "what nvidia-smi would show in addition",
        "smallest": "bytes of the smallest capacity that was found to fit",
        "bounds": "reasons for which the figures are lower bounds",
        "unused": "why no GPU memory was used, where that is known",
        "engine": "the engine and why it was chosen, if that was not fixed",
        "findings": "what the memory shows, with remedies",
        "compared": "why no smaller capacity was tried",
        "to_come": "why the program is known to need more than the request that failed",
        "interrupted": "whether Ctrl-C ended the program",
        "processes": "a report for each process that the program started and that used the GPU",
        "started": "sentences about programs that it started",
        "modules": "bytes by module at the same moment, each without the modules inside it; the last row is of what "
        "belongs to none",
        "module_totals": "bytes by module with all modules inside it, also of modules that only hold others; a row "
        "comes before those inside it",
        "timeline": "memory over the run",
        "command": "the command, without the values of options that name secrets",
        "version": "the version of simgpu",
        "answer": "of `simgpu fit`: the lines with the answer, above the page",
        "results": "of `simgpu fit`: the same answers as data (below)",
        "plan": "of `simgpu fit`: the plan that the page is about",
        "needs": "of `simgpu fit`: bytes that nvidia-smi would show if the GPU were large enough",
        "step": "of `simgpu fit` and the stub engine: seconds of a step on the simulated clock, 0 if it is not known",
        "time": "the estimated time of the run with its range (below), null if no GPU time passed or it is not known",
        "step_time": "of `simgpu fit` and the stub engine: the same of a step",
        "speed": "of `simgpu fit`: tokens per second and MFU of a training step (below), null where it is not known",
        "timed": "of the stub engine: what the times are based on, or why there are none",
    },
    TimeEstimate: {
        "clock": "seconds on the simulated clock",
        "seconds": "the estimate: seconds of the clock times the factor that was fitted for this kind of work",
        "low": "the lower end of its range, in seconds",
        "high": "the upper end of its range, in seconds",
        "work": "the kind of work, in words",
        "rows": "published times that factor and range are from",
    },
    Speed: {
        "tokens": "tokens of one GPU in a step",
        "tokens_per_second": "of one GPU, by the estimated time",
        "low": "the lower end of its range",
        "high": "the upper end of its range",
        "mfu": "the model's FLOPs, as a share of the GPU's published peak; null if one of them is not known",
        "mfu_low": "the lower end of its range",
        "mfu_high": "the upper end of its range",
        "flops": "of the model, of one GPU in a step, by the formula",
        "peak": "published FLOP/s of the type that matmuls compute in",
        "formula": "how FLOPs are counted, or why there is no MFU",
    },
    Spot: {
        "operator": "the operator that allocates",
        "asked": "bytes of its request",
        "stage": '"forward", "backward", "optimizer step" or "without gradients"',
        "steps": "optimizer steps made before",
        "place": "the innermost line of the program's own",
        "stack": "the lines of the stack, innermost first, without PyTorch's",
    },
    Line: {
        "nbytes": "bytes",
        "blocks": "number of blocks",
        "part": "their kind",
        "operator": "the operator that allocated them",
        "stage": "the stage in which most of them were allocated",
        "place": "the line of the program",
        "library": "the line of a library inside of it",
        "stack": "the stack of the first block, innermost first, without PyTorch's lines",
    },
    Module: {
        "model": "the class of the outermost module, with a number if there are several of it",
        "name": "the name in it, as `named_modules()` gives it; empty for itself",
        "kind": "the class of the module; empty for what belongs to none",
        "parameters": "bytes of its parameters and buffers",
        "gradients": "bytes of their gradients",
        "states": "bytes of their optimizer states",
        "saved": "bytes that it allocated and that are saved for backward",
        "temporaries": "bytes of its other tensors, also those of its backward",
        "other": "bytes of workspaces, inputs and FSDP's reduce-scatter buffers that were allocated while it ran",
        "gathered": "bytes of its parameters that FSDP has gathered from all ranks",
    },
    Finding: {
        "name": "its name, which does not change",
        "text": "what was found",
        "nbytes": "bytes that it concerns",
        "lines": "lines of the program",
        "remedy": "what helps",
    },
    File: {
        "path": "the file",
        "times": "how often it was written",
        "nbytes": "bytes of simulated tensors in it",
        "where": "its place in the scratch folder",
        "yours": "whether a file of that name existed and is unchanged",
        "what": "its kind",
    },
    Track: {
        "events": "allocations and frees of the run",
        "at": "the number of the last of them, counted from 1, at the moment that the report describes",
        "names": "a table of texts",
        "kinds": "kinds of blocks: bytes, then part, operator, stage, line, library's line and module, as places in "
        "`names`",
        "blocks": "the kind of each block, in the order of allocation",
        "order": "per event 0 for the allocation of the next block, or n for the free of the n-th newest block",
        "reserved": "pairs: an event, and the bytes of all segments from there on",
        "points": "of a run with more than 100,000 events: pairs of the most bytes allocated and reserved",
        "stride": "events that each pair of `points` is of",
    },
}

TITLES = {
    Report: "The report of `simgpu run`, `simgpu fit` and `simgpu report`",
    TimeEstimate: "`time` and `step_time`",
    Speed: "`speed`",
    Spot: "`at`",
    Line: "`lines`",
    Module: "`modules` and `module_totals`",
    Finding: "`findings`",
    File: "`files`: a list of lists, in this order",
    Track: "`timeline`",
}

INTRODUCTION = f"""# Reports as JSON

`simgpu run --json`, `simgpu fit --json` and `simgpu diff --json` print one JSON document on standard output and nothing
else. What the script prints goes to standard error. `report.json` in the folder of `--out` is the same document, and
`simgpu report FOLDER --json` prints it again. The exit status is the one that the command has without `--json`. A
command that fails prints its message on standard error and no document, and so does `simgpu fit` after Ctrl-C.

Sizes are integers in bytes, and times are seconds. `"schema"` is {SCHEMA}. It changes when a field is removed or gets a
different meaning. New fields may appear without a change, so ignore those that you do not know.
[report_schema.json](report_schema.json) is the same as a JSON schema. Both files are written by
`python -m tools.report_json` from the classes that hold a report.

```
simgpu run --json --gpu T4 train.py 2>/dev/null | jq '.outcome, .peak'
simgpu fit config.json --json --largest batch | jq .results.largest.fits
```
"""

RESULTS = """`results` has an entry for each question that was asked:

| option | entry |
|---|---|
| `--largest` | `largest`: `what` ("batch" or "length"), `fits` (the largest that fits), `too_close_to_call_up_to` |
| `--every-gpu` | `gpus`: the outcome by GPU |
| `--requests` | `serving`: bytes (`budget`, `context`, `weights`, `activations`, `available`, `block_bytes`, \
`token_bytes`), `blocks`, `tokens`, `block_size`, `request_blocks`, `concurrency`, `requests` (how many fit), `asked`, \
`length`, `chunk`, `gpus` (with several, the bytes are those of each) |
| `--techniques`, `--budget` | `techniques`: rows with `applied`, `peak`, `nvidia_smi`, `step`, `time`, `fits`; `best` |
"""

DIFFERENCE = {
    "schema": ({"const": SCHEMA}, "the version of this document"),
    "grown": ({"type": "integer"}, "bytes by which the peak has grown"),
    "before": ({"$ref": "#/$defs/Side"}, "the first run: `name`, `gpu`, `peak` in bytes, and `unmodeled`"),
    "after": ({"$ref": "#/$defs/Side"}, "the second run"),
    "rows": (
        {"type": "array", "items": {"$ref": "#/$defs/Row"}},
        "lines whose bytes changed, the largest change first: `more`, `before` and `after` in bytes, `place`, "
        "`operator` and `part`",
    ),
}


def _object(integers: tuple[str, ...], texts: tuple[str, ...]) -> dict:
    types_of = {name: {"type": "integer"} for name in integers} | {name: {"type": "string"} for name in texts}
    return {"type": "object", "properties": types_of, "required": list(types_of)}


MARGIN = {
    "total_memory": "bytes of the GPU's memory",
    "context": "minus the bytes of the CUDA context",
    "reserved": "minus the most bytes of all segments of PyTorch's allocator",
    "cache": "bytes of them that are not needed: nvidia-smi's most, minus the smallest capacity that was found to fit",
}
OF_DIFFERENCE = {
    "Side": _object(("peak",), ("name", "gpu", "unmodeled")),
    "Row": _object(("more", "before", "after"), ("place", "operator", "part")),
}
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def type_of(hint: object) -> dict:
    """Returns the JSON schema of a type."""
    arguments = typing.get_args(hint)
    if isinstance(hint, type) and hint in PLAIN:
        return {"type": PLAIN[hint]}
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return {"anyOf": [type_of(one) for one in arguments]}
    if hint is File:
        columns = [type_of(one) for one in typing.get_type_hints(File).values()]
        return {"type": "array", "prefixItems": columns, "minItems": len(columns), "maxItems": len(columns)}
    if dataclasses.is_dataclass(hint):
        return {"$ref": f"#/$defs/{getattr(hint, '__name__', '')}"}
    if typing.get_origin(hint) is tuple:
        if arguments[1:] == (Ellipsis,):
            return {"type": "array", "items": type_of(arguments[0])}
        columns = [type_of(one) for one in arguments]
        return {"type": "array", "prefixItems": columns, "minItems": len(columns), "maxItems": len(columns)}
    if hint is dict or typing.get_origin(hint) is dict:
        return {"type": "object"} | ({"additionalProperties": type_of(arguments[1])} if arguments else {})
    raise TypeError(f"no JSON type for {hint!r}: add one to tools/report_json.py")


def definition(kind: type) -> dict:
    """Returns the JSON schema of a dataclass, whose fields are all required."""
    found = {name: type_of(hint) for name, hint in typing.get_type_hints(kind).items()}
    if kind is Report:
        found = {name: schema for name, (schema, _) in DERIVED.items()} | found
    properties = {name: {**schema, "description": _described(kind, name)} for name, schema in found.items()}
    return {"type": "object", "properties": properties, "required": list(found)}


def _described(kind: type, name: str) -> str:
    return DERIVED[name][1] if kind is Report and name in DERIVED else FIELDS[kind][name]


def schema() -> dict:
    """Returns the JSON schema of both documents."""
    difference = {
        "type": "object",
        "properties": {name: {**one, "description": text} for name, (one, text) in DIFFERENCE.items()},
        "required": list(DIFFERENCE),
    }
    classes = {kind.__name__: definition(kind) for kind in FIELDS if kind is not File}
    classes["Margin"] = _object(tuple(MARGIN), ())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Documents of simgpu, schema {SCHEMA}",
        "anyOf": [{"$ref": "#/$defs/Report"}, {"$ref": "#/$defs/Difference"}],
        "$defs": {**classes, "Difference": difference, **OF_DIFFERENCE},
    }


def page() -> str:
    """Returns the page of the documentation."""
    parts = [INTRODUCTION]
    for kind, fields in FIELDS.items():
        hints = typing.get_type_hints(kind)
        rows = [(name, DERIVED[name][0], DERIVED[name][1]) for name in DERIVED] if kind is Report else []
        rows += [(name, type_of(hints[name]), fields[name]) for name in hints]
        parts.append(_table(TITLES[kind], rows))
        if kind is Report:
            parts.append(RESULTS)
            rows = [(name, {"type": "integer"}, text) for name, text in MARGIN.items()]
            parts.append(_table("`margin` of `verdict`", rows))
    rows = [(name, one, text) for name, (one, text) in DIFFERENCE.items()]
    parts.append(_table("The document of `simgpu diff`", rows))
    return "\n".join(parts)


def _table(title: str, rows: list) -> str:
    lines = [f"| `{name}` | {_words(one)} | {text} |" for name, one, text in rows]
    return "\n".join([f"## {title}", "", "| field | type | |", "|---|---|---|", *lines, ""])


def _words(one: dict) -> str:
    """Returns a type in words."""
    if "const" in one:
        return str(one["const"])
    if "enum" in one:
        return " or ".join(map(json.dumps, one["enum"]))
    if "anyOf" in one:
        return " or ".join(map(_words, one["anyOf"]))
    if "$ref" in one:
        return "object"
    if "prefixItems" in one:
        return f"list of {', '.join(map(_words, one['prefixItems']))}"
    if one["type"] == "array":
        inside = _words(one["items"])
        return f"list of {inside}" if inside.startswith("list") else f"list of {inside}s"
    return one["type"]


def main() -> None:
    """Writes both files."""
    PAGE.write_text(page(), encoding="utf-8")
    FILE.write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
