"""Writes the page of a figure with sliders: sliders, a bar, and one sentence, in self-contained HTML.

The initial state is written into the HTML, so that it is correct even if no script runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from typing import Any

from labkit.gpu import unmodeled
from labkit.units import mib

STYLE = """
.labkit-sliding{max-width:44rem;font-size:.9rem;line-height:1.5}
.labkit-sliding .axis{display:grid;grid-template-columns:7rem minmax(6rem,1fr) 6rem;gap:.6rem;align-items:center}
.labkit-sliding input{width:100%;accent-color:#0072B2}
.labkit-sliding .bar{position:relative;height:1.6rem;margin:1.5rem 0 .4rem;border:1px solid #999}
.labkit-sliding .bar b{display:block;height:100%;background:#56B4E9}
.labkit-sliding .bar i{position:absolute;top:-1.25rem;bottom:0;border:0 solid;padding:0 .2rem;font-size:.7rem;
font-style:normal;white-space:nowrap;pointer-events:none}
"""

# `part` is one figure of the page, which may contain the same figure twice.
SCRIPT = """
for (const part of document.querySelectorAll('[data-sliding="%(name)s"]')) {
  const found = %(found)s;
  const sliders = [...part.querySelectorAll("input")];
  const show = () => {
    let at = 0;
    sliders.forEach((slider, axis) => {
      at = at * found.axes[axis].length + Number(slider.value);
      const value = found.axes[axis][slider.value];
      slider.nextElementSibling.textContent = value;
      slider.setAttribute("aria-valuetext", value);
    });
    part.querySelector(".bar b").style.width = found.wide[at] + "%%";
    part.querySelector("output.said").textContent = found.said[at];
  };
  sliders.forEach((slider) => { slider.disabled = false; slider.oninput = show; });
  show();
}
"""


def page(found, title: str, cards: Mapping[str, int], start: Mapping[str, Any], alt: str) -> str:
    """Returns the HTML of a :class:`helpers.sliding.Grid`; ``cards`` from the smallest to the largest, ``start`` a
    point.

    It contains every sentence that it can show, and the script only selects one.
    """
    scale = max([*cards.values(), *(size for size in found.measured.values() if size is not None)])
    wide = [100 if size is None else round(100 * size / scale, 2) for size in found.measured.values()]
    said = [_sentence(size, cards) for size in found.measured.values()]
    axes = [[shown(value) for value in values] for values in found.axes.values()]
    at = 0
    for name, values in found.axes.items():
        at = at * len(values) + values.index(start[name])
    data = json.dumps({"axes": axes, "wide": wide, "said": said}, ensure_ascii=False).replace("</", "<\\/")
    name = sha256((title + data).encode()).hexdigest()[:8]
    sliders = [_slider(axis, values, values.index(start[axis])) for axis, values in found.axes.items()]
    lines = [_line(card, room / scale) for card, room in cards.items()]
    missing = unmodeled()
    return "\n".join(
        [
            f'<div class="labkit-sliding" data-sliding="{name}" role="group" aria-label="{escape(alt)}">',
            f"<style>{STYLE}</style>",
            f"<p><strong>{escape(title)}</strong></p>",
            *sliders,
            f'<div class="bar" aria-hidden="true"><b style="width:{wide[at]}%"></b>{"".join(lines)}</div>',
            f'<output class="said" aria-live="polite">{escape(said[at])}</output>',
            *([f"<p>{escape(missing)}</p>"] if missing else []),
            f"<script>{SCRIPT % {'name': name, 'found': data}}</script>",
            "</div>",
        ]
    )


def shown(value: Any) -> str:
    """Formats a value of an axis."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def smallest(size: int | None, cards: Mapping[str, int]) -> str | None:
    """Returns the first of ``cards`` (smallest first) with ``size`` bytes or more, or None if there is none."""
    return next((name for name, room in cards.items() if size is not None and size <= room), None)


def _line(card: str, share: float) -> str:
    """Returns the mark of a card on the bar, at ``share`` of its width, with its name on the side that has room."""
    side, place = ("left", share) if share < 0.7 else ("right", 1 - share)
    return f'<i style="{side}:{100 * place:.2f}%;border-{side}-width:1px">{escape(card)}</i>'


def _slider(axis: str, values: list, place: int) -> str:
    text = escape(shown(values[place]))
    return (
        f'<label class="axis"><span>{escape(axis)}</span><input type="range" min="0" max="{len(values) - 1}" step="1"'
        f' value="{place}" aria-valuetext="{text}" disabled><span>{text}</span></label>'
    )


def _sentence(size: int | None, cards: Mapping[str, int]) -> str:
    if size is None:
        return "out of memory on the GPU of this notebook"
    if not cards:
        return str(mib(size))
    larger = smallest(size, cards)
    return f"{mib(size)}, " + (
        f"less than the memory of: {larger}" if larger else f"more than any of: {', '.join(cards)}"
    )
