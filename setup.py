"""Gives the package what depends on where the repository is: addresses, and a README whose links work on an index.

LABKIT_REPOSITORY is the repository's address, https://host/owner/name. Without it the package names no address, and the
README's links to files of the repository become their text.
"""

import os
import re
from pathlib import Path

from setuptools import setup

VARIABLE = "LABKIT_REPOSITORY"
HERE = Path(__file__).parent
CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//|#", re.IGNORECASE)
"""The beginning of a link that does not lead to a file of the repository."""


def repository() -> str:
    """Returns the repository's address without a slash at its end, "" if it is not known. Raises ValueError for another
    address than https://host/owner/name."""
    given = os.environ.get(VARIABLE, "").strip()
    address = given.rstrip("/").removesuffix(".git")
    if address and not re.fullmatch(r"https://[^/\s]+/[^/\s]+/[^/\s]+", address):
        raise ValueError(f"{VARIABLE} is {given!r}: wanted https://host/owner/name")
    return address


def urls(address: str) -> dict[str, str]:
    """Returns the package's addresses by their names."""
    if not address:
        return {}
    return {
        "Homepage": address,
        "Documentation": f"{address}/tree/HEAD/docs",
        "Issues": f"{address}/issues",
        "Changelog": f"{address}/blob/HEAD/CHANGELOG.md",
    }


def described(text: str, address: str) -> str:
    """Returns a README whose links and images work outside of the repository."""

    def changed(found: re.Match) -> str:
        image, words, target = found.groups()
        words = LINK.sub(changed, words)  # an image inside a link
        if ELSEWHERE.match(target):
            return f"{image}[{words}]({target})"
        if not address:
            return f"*{words}*" if image else words
        return f"{image}[{words}]({address}/{'raw' if image else 'blob'}/HEAD/{target.removeprefix('./')})"

    parts = CODE.split(text)
    parts[::2] = [LINK.sub(changed, part) for part in parts[::2]]
    return "".join(parts)


if __name__ == "__main__":
    setup(
        long_description=described((HERE / "README.md").read_text(encoding="utf-8"), repository()),
        long_description_content_type="text/markdown",
        project_urls=urls(repository()),
    )
