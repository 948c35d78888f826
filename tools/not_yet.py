"""Which chapter does not keep which rules of tools/chapter_shape.py yet: whoever brings one there takes the names off.

The list only shrinks, and a test fails for a name that could be taken off. A new chapter has no line here. "everywhere"
is not a rule of the stored notebook but of `python -m tools.notebooks`: no contradiction on another GPU, at another
size, or on a second run.
"""

_LISTED = {
    "04_counting_by_hand": "everywhere",
    "07_batch_size": "everywhere",
    "09_gradient_accumulation": "everywhere",
    "10_gradient_checkpointing": "everywhere",
    "12_optimizers": "everywhere",
    "13_fusion_and_compile": "everywhere",
    "14_offload": "everywhere",
}
NOT_YET = {notebook: names.split() for notebook, names in _LISTED.items()}
