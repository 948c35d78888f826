#!/usr/bin/env python3
"""Sets up the course and opens it, tests it, or makes its editions: `python course.py open`, `python course.py test`.

`python course.py --help` lists all commands; tools/course.py is what they do. This file is also read by Pythons that
are too old for the rest, so that they can say so.
"""

import os
import sys

if sys.version_info < (3, 10):  # noqa: UP036 - whoever has an older one is told so here
    sys.exit("Python 3.10 or later is needed, this is %d.%d (%s)." % (sys.version_info[:2] + (sys.executable,)))  # noqa: RUF005, UP031

# Its own folder, which Python leaves out if PYTHONSAFEPATH is set; for the programs that it starts too.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from tools.course import main

if __name__ == "__main__":
    sys.exit(main())
