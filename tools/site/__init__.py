"""Builds the course as a site with Sphinx, from the stored outputs: `python -m tools.site`.

`stage` lays the sources of the pages into a folder: the notebooks (`notebooks`), the pages of docs/, and those that are
written here (`index`, `exactness`, `glossary` from docs/). Links and mentions of chapters become links of the site
(`links`). conf.py is Sphinx's configuration. `check` reads what was built, `browser` looks at it in Chromium.
Nothing is executed, torch is not needed, and nothing is fetched.
"""
