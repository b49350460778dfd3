"""The name of the distribution, and how to install its extras.

The package index has an unrelated project named `holdfast`, so no message or page may suggest installing that name.
Until `holdfast-memory` is published, install commands refer to a clone: they take Holdfast itself from the clone and
not from the package index.
"""

from __future__ import annotations

from typing import Final

NAME: Final = "holdfast-memory"
"""Name of the distribution, for installers. The package to import is `holdfast`."""
INSTALL: Final = "from a clone: pip install ."
"""Instruction for installing Holdfast without extras."""


def format_install_hint(extra: str) -> str:
    """Return an install instruction for an extra, to append to an error message.

    Args:
        extra: an extra that pyproject.toml defines, for example `postgres`.
    """
    return f"the extra {extra!r} of {NAME}; from a clone: pip install '.[{extra}]'"
