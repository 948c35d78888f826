"""Sizes as text, and text as sizes."""

import re

MIB = 2**20
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.|e|$)", re.IGNORECASE)
_BARE = re.compile(r"[\d,_]*\.?\d+(e\+?\d+)?", re.IGNORECASE)
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def mib(nbytes: int) -> str:
    """Bytes in MiB, to a hundredth: "1,234.56"."""
    return f"{nbytes / MIB:,.2f}"


def size(nbytes: int) -> str:
    """Bytes as text with their unit: MiB, to a hundredth where it is needed, and B below 0.1 MiB."""
    if nbytes < MIB // 10:
        return f"{nbytes:,} B"
    return f"{mib(nbytes).removesuffix('.00')} MiB"


def rough(nbytes: int) -> str:
    """Bytes as text for an estimate: MiB to two significant digits, or to three from 1,000 MiB on."""
    value = nbytes / MIB
    digits = 2 if value < 1000 else 3
    return f"{float(f'{value:.{digits}g}'):,.10g} MiB"


def share(nbytes: int, whole: int) -> str:
    """ "12.3 %" of a whole."""
    return f"{100 * nbytes / whole:.1f} %" if whole else ""


def parse(text: str | int) -> int:
    """Bytes from "12 GiB", "12GiB", "500 MiB", "16GB" (10⁹ B), "4 bytes" or a number of bytes, "1e9" too.

    "12G" is 12 GiB, as docker and PyTorch's limits mean it. Commas group thousands: "1,500 MiB". Raises ValueError for
    anything else, a decimal comma among it, and for less than 1 B.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        found = text
    else:
        match = re.fullmatch(
            r"\s*([\d_,]*\.?\d+(?:e\+?\d{1,2})?)\s*(?:bytes?|([kmgt]?)(i?b)?)\s*", str(text), re.IGNORECASE
        )
        if match is None:
            raise ValueError(f"{text!r} is not a size; wanted one like '12 GiB', '500 MiB' or a number of bytes")
        number, letter, rest = (part.lower() for part in match.groups(default=""))
        if "," in number and not _GROUPED.match(number):
            raise ValueError(
                f"{text!r} is not a size: a comma groups thousands ('1,500 MiB'); wanted a point ('1.5 GiB')"
            )
        scale = _DECIMAL.get(letter + rest, _UNITS[letter])
        found = round(float(number.replace(",", "").replace("_", "")) * scale)
    if found <= 0:
        raise ValueError(f"{text!r} is not a size: it must be more than 0 B")
    return found


def capacity(text: str | int) -> int:
    """Bytes of a memory's capacity, as `parse` reads them.

    Raises ValueError for a text without a unit that is less than 1 MiB, too, because "12" hardly means 12 B.
    """
    number = str(text).strip()
    if isinstance(text, str) and _BARE.fullmatch(number) and 0 < parse(f"{number}MiB") < MIB * MIB:
        raise ValueError(f"{number!r} is {number} B, as it has no unit; write '{number}GiB' or '{number}MiB'")
    return parse(text)
