"""The two modes, function and dispatch, and what they ask."""
