"""`python -m tandem.cli`: the `tandem` command."""

import sys

from tandem import own_packages
from tandem.cli import main

own_packages.prefer()
sys.exit(main())
