"""`python -m phibe` is the command line."""

import sys

from phibe.cli import main

sys.exit(main())
