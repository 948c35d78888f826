"""The page on citing, from CITATION.cff."""

from __future__ import annotations

import yaml

HEAD = """\
# How to cite

{message}

```bibtex
{bibtex}
```

As text:

> {text}

A figure that you take from a chapter is worth more with its GPU, its version of PyTorch, its counter and its unit: each
figure and table of the course carries them, *simulated* included. What the simulated GPU's numbers were compared with:
[How exact is it?](exactness.md) The file that programs read is [CITATION.cff](../CITATION.cff).
"""


def page(cff: str, address: str | None) -> str:
    """The page in Markdown, from the text of CITATION.cff; `address` is the repository's, if it is known."""
    about = yaml.safe_load(cff)
    names = [one.get("name") or f"{one['given-names']} {one['family-names']}" for one in about["authors"]]
    fields = {
        "author": " and ".join(f"{{{name}}}" for name in names),
        "title": f"{{{about['title']}}}",
        "version": str(about["version"]),
        "year": str(about["date-released"])[:4] if "date-released" in about else "",
        "url": about.get("repository-code") or about.get("url") or address or "",
        "license": about.get("license", ""),
    }
    lines = ",\n".join(f"  {name:8} = {{{value}}}" for name, value in fields.items() if value)
    text = f"{', '.join(names)}: *{about['title']}*, version {about['version']}"
    text += "".join(f", {fields[name]}" for name in ("year", "url") if fields[name])
    return HEAD.format(
        message=about["message"], bibtex=f"@software{{gpu_memory_byte_by_byte,\n{lines}\n}}", text=text + "."
    )
