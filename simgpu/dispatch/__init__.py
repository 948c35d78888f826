"""The two modes, function and dispatch, and the handlers and rules that they use."""
