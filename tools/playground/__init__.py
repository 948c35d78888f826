"""Builds the site's page for trying the caching allocator in the browser, where Pyodide runs `simgpu.allocator`.

What is here knows no torch. `game`, `telling`, `state`, `tasks`, `replay` and `answers` run in the browser; `build`
and `pyodide` put the page together (`python -m tools.playground FOLDER`). `page/` has its HTML, CSS and JavaScript.
"""
