"""`python -m burnish` is the command `burnish`."""

import sys

from burnish.cli import main

sys.exit(main())
