"""What the page shows of an allocator, as dictionaries, lists, texts and numbers; sizes in bytes."""

from __future__ import annotations

from simgpu.allocator.caching import CachingAllocator
from tools.playground.game import Playground, Told

LAST = 100
"""So many moves are told; older ones count only."""


def counters(allocator: CachingAllocator) -> dict[str, int]:
    """`torch.cuda.memory_stats()`: every counter under its name there, sorted by name."""
    flat: dict[str, int] = {}

    def walk(name: str, value) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}.{key}" if name else key, inner)
        else:
            flat[name] = value

    stats = allocator.stats()
    stats.pop("reserved_bytes_by_private_pools", None)  # of pools that the playground does not make
    walk("", stats)
    return dict(sorted(flat.items()))


def segments(allocator: CachingAllocator, names: dict[int, str] | None = None) -> list[dict]:
    """Each segment and its blocks, by address; `names` are those of living blocks, by address."""
    names = names or {}
    return [
        {
            "address": segment["address"],
            "size": segment["total_size"],
            "pool": segment["segment_type"],
            "expandable": segment["is_expandable"],
            "blocks": [
                {
                    "address": block["address"],
                    "size": block["size"],
                    "requested": block["requested_size"] if block["state"] == "active_allocated" else 0,
                    "state": block["state"],
                    "name": names.get(block["address"], "") if block["state"] == "active_allocated" else "",
                }
                for block in segment["blocks"]
            ],
        }
        for segment in allocator.snapshot_segments()
    ]


def settings(allocator: CachingAllocator) -> dict:
    """The settings that hold, as a snapshot names them, without those that change nothing here."""
    wanted = ("max_split_size", "garbage_collection_threshold", "expandable_segments")
    found = allocator.settings
    shown = found.as_snapshot()
    divisions = found.roundup_power2_divisions
    return {
        "text": found.text,
        **{key: shown[key] for key in wanted},
        "roundup_power2_divisions": sorted(set(divisions)) if divisions else [],
        "large_segment_size": found.large_segment_size,
    }


def told(one: Told) -> dict:
    """A move and what it did."""
    return {"text": one.text, "code": one.code, "said": one.said, "error": one.error}


def card(game: Playground) -> dict:
    """The card's memory, and who holds it."""
    device, allocator = game.allocator.device, game.allocator
    return {
        "total": device.total_memory,
        "context": device.context,
        "allowed": round(allocator.memory_fraction * device.total_memory) if allocator.memory_fraction < 1 else None,
        "free": device.free_memory,
        "in_use": device.process_memory,
        "reserved": allocator.reserved,
        "allocated": allocator.allocated,
    }


def whole(game: Playground) -> dict:
    """All that the page shows of a game."""
    return {
        "card": card(game),
        "settings": settings(game.allocator),
        "segments": segments(game.allocator, game.names()),
        "counters": counters(game.allocator),
        "before": len(game.before),
        "made": len(game.made),
        "moves": [told(one) for one in [*game.before, *game.made][-LAST:]],
        "next_name": game.next_name(),
        "program": game.program(),
    }
