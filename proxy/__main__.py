"""``python -m proxy``: the same as ``fetchgate``."""

import sys

from proxy.cli import main

sys.exit(main())
