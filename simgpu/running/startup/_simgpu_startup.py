"""Names the environment variables that a run sets for the processes it starts, and writes records of a process.

`sitecustomize` imports this file from its own folder, so the name is one that no program has. Only Python's standard
library is used here, because the process may be in another environment.
"""

import os
from time import time_ns  # as it is now: a run simulates the clock

FOLDER = os.path.dirname(os.path.abspath(__file__))
RECORDS = "SIMGPU_PROCESSES"
"""The environment variable that names the folder of the run's records."""
FILES = "SIMGPU_FILES"
"""The environment variable that names the scratch folder of a run without values (simgpu/running/files)."""
STUB_CACHES = "SIMGPU_STUB_CACHES"
"""The environment variable of a run on the stub engine: the caches of compiled code, whose files are not kept apart."""


def note(folder, kind, **about):
    """Writes a record, a dict of literals, so that it is there as a whole or not at all. Returns its path."""
    name = os.path.join(folder, f"{os.getpid()}-{time_ns()}.{kind}")
    with open(name + ".part", "w") as file:
        file.write(ascii({"pid": os.getpid(), **about}))
    os.replace(name + ".part", name)
    return name
