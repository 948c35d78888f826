"""Translates the course by gettext catalogues: `python -m tools.translation --help`.

`messages` cuts Markdown into messages and puts translations in their places. `catalogues` are the PO files of
translations/, a language each. `sameness` says what a translation must share with the English. `edition` is a notebook
in another language: its Markdown alone is translated, its code and its outputs are the English one's, always.
"""
