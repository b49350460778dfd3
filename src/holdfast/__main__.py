"""`python -m holdfast`: the same as `holdfast`."""

from __future__ import annotations

import sys

from holdfast.cli import main

sys.exit(main())
