"""Build the site or check its links: `python -m scripts.site html|linkcheck [options of sphinx-build]`."""

from __future__ import annotations

import sys
from typing import Final

from sphinx.cmd.build import build_main

from scripts.site.source_folder import DOCS, ROOT, stage

BUILD: Final = ROOT / "build"
SOURCE: Final = BUILD / "docs-source"
OUTPUTS: Final = {"html": BUILD / "docs", "linkcheck": BUILD / "docs-links"}


def main(arguments: list[str]) -> int:
    """Build the site; return the exit code. Warnings and broken links within the site are errors."""
    if not arguments or arguments[0] not in OUTPUTS:
        print(f"usage: python -m scripts.site {' | '.join(OUTPUTS)}", file=sys.stderr)
        return 2
    builder, *options = arguments
    stage(SOURCE)
    output = OUTPUTS[builder]
    trees = BUILD / "docs-trees"
    # Write all pages: the list of pages in each of them changes with any other page.
    strict = ["--write-all", "--nitpicky", "--fail-on-warning", "--keep-going"]
    failed: int = build_main(
        ["-b", builder, "-c", str(DOCS), "-d", str(trees), "-q", *strict, *options, str(SOURCE), str(output)]
    )
    if not failed and builder == "html":
        print(f"The site: {(output / 'index.html').relative_to(ROOT)}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
