"""Random moves, the same for the same seed: of every kind, with sizes on both sides of every limit."""

import random
from collections.abc import Iterator

MIB = 2**20
SIZES = (
    "4 B",
    "512",
    "513",
    "1 MiB",
    "1048577",
    "3 MiB",
    "9.99 MiB",
    "10 MiB",
    "11 MiB",
    "30 MiB",
    "64 MiB",
    "200 MiB",
)
SETTINGS = (
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:64,max_non_split_rounding_mb:32",
    "garbage_collection_threshold:0.6",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[64:2,256:4,>:8]",
)


def wander(seed: int, moves: int) -> Iterator[dict]:
    """That many moves. Some free what is not there: whoever makes the moves is to expect a refusal."""
    rng = random.Random(seed)
    for _ in range(moves):
        kind = rng.choices(("ask", "free", "empty_cache", "reset_peak", "settings"), (10, 8, 1, 0.5, 0.5))[0]
        if kind == "ask":
            size = rng.choice((*SIZES, str(rng.randrange(1, 40 * MIB))))
            count = rng.choices((1, rng.randrange(2, 9), "until it fails"), (10, 2, 0.3))[0]
            if count == "until it fails":
                size = "64 MiB"
            yield {"do": "ask", "size": size, "name": f"t{rng.randrange(25)}", "count": count}
        elif kind == "free":
            name = f"t{rng.randrange(25)}"
            yield {"do": "free", "name": name if rng.random() < 0.8 else f"{name}[{rng.randrange(3)}]"}
        elif kind == "settings":
            yield {"do": "settings", "text": rng.choice(SETTINGS)}
        else:
            yield {"do": kind}
