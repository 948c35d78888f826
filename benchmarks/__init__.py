"""Speed and memory of the simulated GPU itself, as ratios."""
