"""The distribution's name, and how to install its extras.

The package index has an unrelated project named `holdfast`, so no message or page may suggest to install that name. As long as
`holdfast-memory` is not published, the commands install from a clone, where no index is asked for Holdfast itself.
"""

from __future__ import annotations

from typing import Final

NAME: Final = "holdfast-memory"
"""What installers call it. The package to import is `holdfast`."""
FORMER_NAME: Final = "holdfast"
"""What 0.1 called the distribution; the package index has another project of this name."""
INSTALL: Final = "from a clone: pip install ."
"""How to install Holdfast without extras."""


def format_install_hint(extra: str) -> str:
    """Return how to install an extra, for the end of an error message.

    Args:
        extra: one of the extras in pyproject.toml, for example `postgres`.
    """
    return f"the extra {extra!r} of {NAME}; from a clone: pip install '.[{extra}]'"
