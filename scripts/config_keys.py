"""Write the table of all keys into docs/configuration.md, from the model: `python scripts/config_keys.py`. `--check` says whether it is current, and writes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.config.fields import table

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
BEGIN, END = "<!-- keys: made by scripts/config_keys.py -->\n", "<!-- keys: end -->\n"


def written(page: str) -> str:
    """The page with the table as the model has it."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> int:
    """The exit code."""
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        return int(written(page) != page)
    PAGE.write_text(written(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
