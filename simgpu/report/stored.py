"""Reports as JSON: the version of its schema, how documents are written, and what a stored file holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

SCHEMA = 1
"""The version of the documents. It changes when a field is removed or its meaning changes, and not for a new field."""

_COLUMN = re.compile(r"\[\n\s*-?\d+(?:,\n\s*-?\d+)*\n\s*\]")
"""A list of integers over several lines, which cannot be inside a text of JSON."""


def written(document: dict) -> str:
    """Returns a document as JSON, indented by one space, with each list of integers on one line."""
    text = json.dumps(document, indent=1)
    return _COLUMN.sub(lambda found: re.sub(r"\s+", "", found[0]), text) + "\n"


def read(path: Path, wanted: str) -> dict:
    """Returns the document of a file. ValueError if it holds no JSON object, or one of another schema; OSError if it
    cannot be read. `wanted`: what the message says that was wanted."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}): {wanted}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds {named(found)}: {wanted}")
    schema = found.get("schema", SCHEMA)  # reports had none before
    if schema != SCHEMA:
        raise ValueError(f"{path} has schema {schema!r}, and this version of simgpu reads {SCHEMA}: {wanted}")
    return found


def named(found: object) -> str:
    """Says what a JSON file holds, in a few words."""
    if not isinstance(found, dict):
        return f"JSON of type {type(found).__name__}"
    names = [repr(name if len(name) < 40 else name[:40] + "…") for name in found]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"a JSON object with the keys {shown}" if names else "an empty JSON object"
