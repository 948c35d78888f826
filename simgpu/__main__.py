"""`python -m simgpu`: the command `simgpu`."""

import sys

from simgpu.command import main

if __name__ == "__main__":
    sys.exit(main())
