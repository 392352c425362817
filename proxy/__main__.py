"""``python -m proxy`` is the same command as ``fetchgate``."""

import sys

from proxy.command.cli import main

sys.exit(main())
