"""`python -m rematpass`: the command line, where the `rematpass` command is not on the PATH."""

import sys

from .cli import main

sys.exit(main())
