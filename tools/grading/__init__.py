"""Grades the answers in a reader's copy of a notebook, by the course's own exercises: `python course.py grade FILE`.

The copy is run as it is, in a process of its own, and the values of its answers are read from there. The judge is the
course's notebook in a second process, with those values in the place of its three dots: a changed judge in the copy
changes nothing. Only where an answer is a function, or an object such as a model's configuration, the lines that make
it run in the judge's process, too. `python course.py grade NOTEBOOK` is the command; docs/teachers.md describes it.
"""
