"""Where the repository is published, if it is: the one place that knows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
VARIABLE = "LABKIT_REPOSITORY"
NAMES = ("repository", "source", "source code")  # of an entry of [project.urls], in any case


def url(environment=os.environ, project: Path = ROOT / "pyproject.toml") -> str | None:
    """The repository's address, without a slash at its end; None if it is not known, and is not invented.

    LABKIT_REPOSITORY decides where it is set (set to nothing, it means none), else `[project.urls]` of pyproject.toml.
    Raises ValueError for an address that is not https://host/owner/name.
    """
    found = environment.get(VARIABLE)
    if found is None:
        urls = tomllib.loads(project.read_text(encoding="utf-8"))["project"].get("urls", {})
        found = next((address for name, address in urls.items() if name.lower() in NAMES), "")
    found = found.strip().rstrip("/").removesuffix(".git")
    if found and (not found.startswith("https://") or len(found.split("/")) != 5):
        raise ValueError(f"the repository's address is {found!r}: wanted https://host/owner/name ({VARIABLE})")
    return found or None
