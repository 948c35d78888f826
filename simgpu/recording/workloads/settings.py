"""The allocator's settings, in training with batches of changing lengths, which fragments memory."""

import torch
from torch import nn

GiB = 2**30
LENGTHS = (64, 512, 96, 384, 32, 256, 448, 333, 77)
WIDTH = 512


def changing_lengths(stage):
    """Trains a small transformer encoder, one step of AdamW per length, in a process limited to 3 GiB."""
    torch.cuda.set_per_process_memory_fraction(3 * GiB / torch.cuda.get_device_properties(0).total_memory)
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    stage("model")

    def epoch(stage=lambda name: None):
        for length in LENGTHS:
            x = torch.randn(16, length, WIDTH, device="cuda")
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            del x
            stage(f"length {length}")

    epoch(stage)
    epoch(stage)
    return epoch


SETTINGS = {
    "settings-max-split-size": "max_split_size_mb:32",
    "settings-garbage-collection": "garbage_collection_threshold:0.2",
    "settings-roundup-power2": "roundup_power2_divisions:4",
    "settings-roundup-power2-by-size": "roundup_power2_divisions:[64:8,256:4,1024:2,>:1]",
    "settings-expandable-segments": "expandable_segments:True",
}
WORKLOADS = {"settings-default": changing_lengths} | dict.fromkeys(SETTINGS, changing_lengths)
