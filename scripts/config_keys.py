"""Generate the tables of docs/configuration-keys.md and docs/strategy-keys.md from the code: `python scripts/config_keys.py`.

With `--check` it writes nothing and exits with 1 if a table is outdated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from holdfast.config.reference import format_table
from holdfast.context.settings import DEFAULT_STRATEGY, STRATEGIES

DOCS = Path(__file__).parents[1] / "docs"
_KINDS = {
    "integer": "integer",
    "share": "above 0, below 1",
    "text": "string",
    "texts": "list of strings",
    "flag": "true, false",
}


def format_strategies() -> str:
    """Format all strategies and their keys as a Markdown table. The page describes the keys that all strategies share."""
    lines = ["| strategy | key | type | default | meaning |", "| --- | --- | --- | --- | --- |"]
    for name, strategy in STRATEGIES.items():
        lines.append(f"| `{name}`{' (default)' if name == DEFAULT_STRATEGY else ''} | | | | {strategy.about} |")
        for key, what in strategy.keys.items():
            if what.kind not in ("clearing", "switch"):
                kind = f"{_KINDS[what.kind]}, from {what.low}" if what.kind == "integer" else _KINDS[what.kind]
                lines.append(f"| | `{key}` | {kind} | {_format_default(what.default)} | {what.about} |")
    return "\n".join(lines) + "\n"


def _format_default(value: object) -> str:
    if value is None or value == ():
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


TABLES: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("configuration-keys.md", "keys", format_table),
    ("strategy-keys.md", "strategies", format_strategies),
)


def replace_table(page: str, name: str, rows: str) -> str:
    """Return the page with the named table replaced."""
    begin, end = f"<!-- {name}: made by scripts/config_keys.py -->\n", f"<!-- {name}: end -->\n"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{rows}\n{end}{after}"


def main() -> int:
    """Write or check the tables; return the exit code."""
    stale = 0
    for name, what, format_rows in TABLES:
        page = (DOCS / name).read_text(encoding="utf-8")
        new = replace_table(page, what, format_rows())
        if "--check" in sys.argv[1:]:
            stale |= new != page
        else:
            (DOCS / name).write_text(new, encoding="utf-8")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
