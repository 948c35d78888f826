"""Figures in an HTML report: an element <data> whose value is the number of bytes, and a table's cell with one."""

from collections.abc import Callable

from simgpu.report.sizes import mib


def figure_of(nbytes: int, text: Callable[[int], str] = mib) -> str:
    """Returns a figure as an element that holds its bytes."""
    return f'<data value="{nbytes}">{text(nbytes)}</data>'


def number(nbytes: int) -> str:
    """Returns a cell with a figure in MiB."""
    return f'<td class="number{"" if nbytes else " quiet"}">{figure_of(nbytes)}</td>'
