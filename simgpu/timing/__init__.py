"""The clock, and the constants it assumes."""
