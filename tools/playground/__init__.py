"""A page of the site on which the caching allocator is played with: `simgpu.allocator` in the browser, by Pyodide.

What is here knows no torch. `game`, `telling`, `state`, `tasks`, `replay` and `answers` run in the browser; `build`
and `pyodide` put the page together (`python -m tools.playground FOLDER`). `page/` has its HTML, CSS and JavaScript.
"""
