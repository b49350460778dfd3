"""Write the page and the pinned list of public names; with `--check`, exit with 1 if one of them is outdated."""

from __future__ import annotations

import sys

from scripts.public_names.page import FILES


def main() -> int:
    """Write or check the files; return the exit code."""
    stale = 0
    for path, make in FILES.items():
        text = make()
        if "--check" in sys.argv[1:]:
            stale |= not path.exists() or path.read_text(encoding="utf-8") != text
        else:
            path.write_text(text, encoding="utf-8")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
