"""Measure the functions and files of src/holdfast: `python scripts/shapes.py` exits with 1 if one is too large."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "holdfast"
FUNCTION, FUNCTIONS_P90, FILE = 60, 20, 700
"""Most lines of a function, of nine in ten functions, and of a file."""


def list_functions(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the number of lines in the body of each function, including its docstring, and its name.

    The signature and decorators do not count: one line per parameter is easy to read.
    """
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.body[0].lineno + 1, f"{file.relative_to(SOURCE)}: {node.name}"


def main() -> int:
    """Print the sizes and what is too large; return the exit code."""
    files = sorted(SOURCE.rglob("*.py"))
    sizes = sorted(one for file in files for one in list_functions(file))
    lines = sorted(
        (len(file.read_text(encoding="utf-8").splitlines()), str(file.relative_to(SOURCE))) for file in files
    )
    p90 = sizes[len(sizes) * 9 // 10][0]
    print(
        f"{len(sizes):,} functions: median {sizes[len(sizes) // 2][0]} lines, p90 {p90} (may be {FUNCTIONS_P90}), longest:"
    )
    print(*(f"  {size:3} {name}" for size, name in sizes[-5:]), sep="\n")
    print(f"{len(lines):,} files: median {lines[len(lines) // 2][0]} lines, largest:")
    print(*(f"  {size:3} {name}" for size, name in lines[-5:]), sep="\n")
    large = [name for size, name in sizes if size > FUNCTION] + [name for size, name in lines if size > FILE]
    print(*(f"too large: {name}" for name in large), sep="\n")
    return int(bool(large) or p90 > FUNCTIONS_P90)


if __name__ == "__main__":
    sys.exit(main())
