"""`python -m ternfed` is the command `ternfed`."""

import os
import sys
from pathlib import Path

here = os.getcwd()
if sys.path[0] in ("", here) and Path(here) not in Path(__file__).parents:
    # `-m` puts the current folder first, where a file named zstandard.py would be taken for the library.
    del sys.path[0]

from ternfed.cli.app import main  # noqa: E402

main()
