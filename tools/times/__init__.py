"""The clock beside published times of models: `python -m tools.times` (docs/times.md)."""
