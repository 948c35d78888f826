"""Lists the chapters that do not keep a rule of tools/chapter_shape.py yet; remove a name when a chapter keeps it.

The list only shrinks, and a test fails for a name that could be taken off. "everywhere" is not a rule of the stored
notebook but of `python -m tools.notebooks NN --every-way`: no contradiction on another GPU, at another size, or on a
second run. A chapter is listed until somebody has run it in all those ways.
"""

_LISTED: dict[str, str] = {}
NOT_YET = {notebook: names.split() for notebook, names in _LISTED.items()}
