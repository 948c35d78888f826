"""Runs the command `simgpu` as `python -m simgpu`."""

import sys

from simgpu.command import main

if __name__ == "__main__":
    sys.exit(main())
