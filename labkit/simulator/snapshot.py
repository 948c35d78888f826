"""Memory snapshots: the segments of an allocator as PyTorch describes them.

Format: `torch/csrc/cuda/memory_snapshot.cpp` of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from labkit.simulator.blocks import Block, Segment
from labkit.simulator.history import DEFAULT_POOL


def describe_segments(segments: Iterable[Segment], device: int = 0) -> list[dict]:
    """Each segment with its blocks as `torch.cuda.memory_snapshot()` returns them, by address.

    An expandable segment gives one entry per contiguous range that has memory behind it.
    """
    entries = [_describe(blocks, device) for segment in segments for blocks in _mapped_ranges(segment)]
    return sorted(entries, key=lambda entry: entry["address"])


def _mapped_ranges(segment: Segment) -> Iterator[list[Block]]:
    blocks: list[Block] = []
    for block in segment:
        if block.mapped:
            blocks.append(block)
        elif blocks:
            yield blocks
            blocks = []
    if blocks:
        yield blocks


def _describe(blocks: list[Block], device: int) -> dict:
    first = blocks[0]
    active = [block for block in blocks if block.active]
    return {
        "device": device,
        "address": first.address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in blocks if block.allocated),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested_size for block in active),
        "stream": first.stream,
        "segment_type": "small" if first.pool.is_small else "large",
        "segment_pool_id": DEFAULT_POOL,
        "is_expandable": bool(first.segment.granule),
        "frames": list(first.segment_frames or ()),
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested_size,
                "state": _state(block),
                "frames": list(block.frames or ()),
            }
            for block in blocks
        ],
    }


def _state(block: Block) -> str:
    if block.allocated:
        return "active_allocated"
    return "active_pending_free" if block.active else "inactive"
