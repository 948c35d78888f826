"""The simulated clock and the constants it assumes."""
