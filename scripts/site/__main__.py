"""`make docs`, `make docs-links`: `python -m scripts.site html|linkcheck [options of sphinx-build]`."""

from __future__ import annotations

import sys
from typing import Final

from sphinx.cmd.build import build_main

from scripts.site.staging import DOCS, ROOT, stage

BUILD: Final = ROOT / "build"
SOURCE: Final = BUILD / "docs-source"
PLACES: Final = {"html": BUILD / "docs", "linkcheck": BUILD / "docs-links"}


def main(arguments: list[str]) -> int:
    """The exit code; a warning is an error, and so is a link within the site that leads nowhere."""
    if not arguments or arguments[0] not in PLACES:
        print(f"which one? {' | '.join(PLACES)}", file=sys.stderr)
        return 2
    builder, *options = arguments
    stage(SOURCE)
    place = PLACES[builder]
    trees = BUILD / "docs-trees"
    # All pages are written: the list of pages beside each of them changes with any other one.
    strict = ["--write-all", "--nitpicky", "--fail-on-warning", "--keep-going"]
    failed: int = build_main(
        ["-b", builder, "-c", str(DOCS), "-d", str(trees), "-q", *strict, *options, str(SOURCE), str(place)]
    )
    if not failed and builder == "html":
        print(f"The site: {(place / 'index.html').relative_to(ROOT)}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
