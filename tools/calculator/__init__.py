"""Builds the site's page "Will it fit?", which answers from tables that `simgpu.fit` computed."""
