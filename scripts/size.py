"""Count what a reader and a user of this project meet, and compare the counts with budgets.toml.

    python -m scripts.size            print the counts; exit with 1 if one is above its limit
    python -m scripts.size --json     print them as JSON
    python -m scripts.size --write    make the present counts the limits

A line of code of a Python file has a token that is neither a comment nor part of a docstring. Of other text files in src (SQL, JavaScript,
CSS, HTML, JSON and so on) the lines that are not blank count. Words are those of README.md and docs without code blocks. Only files that git
knows are read.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from scripts.surface import count_surface

ROOT: Final = Path(__file__).parents[1]
BUDGETS: Final = ROOT / "budgets.toml"
LONG_FUNCTION: Final = 60
"""Most lines of a function, with its signature and docstring, without decorators."""
LONG_FILE: Final = 800
"""Most lines of a file."""
OTHER_TEXT: Final = frozenset(
    [".sql", ".lua", ".js", ".css", ".html", ".json", ".yaml", ".toml", ".txt", ".jinja", ".tsv", ".csv"]
)
"""Endings of the other files in src whose lines count."""
Counts = Mapping[str, Mapping[str, int]]
"""Counts, or limits, by section of budgets.toml and name."""
_NO_CODE: Final = frozenset(
    {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENDMARKER, tokenize.ENCODING),
    }
)
_HEAD: Final = """\
# The limits of `make sizes`: it fails above one of them. `make sizes ARGS=--write` makes the present counts the limits.
"""


@dataclass
class Size:
    """The counts of one package of src, or of another folder."""

    code: int = 0
    other: int = 0
    """Lines of `code` that are not Python."""
    files: int = 0
    long_files: int = 0
    functions: list[int] = field(default_factory=list)
    """The number of lines of each function."""


def main() -> int:
    """Print the counts, or make them the limits. Return 1 if a count is above its limit."""
    counts: Counts = {**count_files(), "surface": count_surface()}
    if "--write" in sys.argv[1:]:
        BUDGETS.write_text(format_budgets(counts), encoding="utf-8")
    if "--json" in sys.argv[1:]:
        print(json.dumps(counts, indent=1))
    else:
        print("\n".join(format_counts(counts)))
    limits = tomllib.loads(BUDGETS.read_text(encoding="utf-8"))
    excesses = list(find_excesses(counts, limits))
    print(*excesses, sep="\n", file=sys.stderr)
    return int(bool(excesses))


def count_files() -> dict[str, dict[str, int]]:
    """Count lines, functions, pages and words of the files that git knows."""
    sizes: dict[str, Size] = {}
    pages = words = lines = characters = 0
    for name in _list_files():
        path = PurePosixPath(name)
        if path.suffix == ".md" and (path.parts[0] == "docs" or name == "README.md"):
            pages += 1
            words += count_words(_read(name))
        elif path.suffix == ".py" or (path.parts[0] == "src" and path.suffix in OTHER_TEXT):
            text = _read(name)
            _add_file(sizes.setdefault(_get_package(path), Size()), path, text)
            if path.suffix == ".py" and path.parts[0] == "src":
                written = [line for line in text.splitlines() if line.strip()]
                lines, characters = lines + len(written), characters + sum(map(len, written))
    packages = {name: size for name, size in sizes.items() if name.startswith("src/")}
    functions = [length for size in packages.values() for length in size.functions]
    totals = {
        "src code lines": sum(size.code for size in packages.values()),
        "of them not Python": sum(size.other for size in packages.values()),
        "src characters per line": round(characters / max(1, lines)),
        "src files": sum(size.files for size in packages.values()),
        f"src files over {LONG_FILE} lines": sum(size.long_files for size in packages.values()),
        "src packages": len(packages) - ("src/(top)" in packages),
        "src functions": len(functions),
        f"src functions over {LONG_FUNCTION} lines": sum(length > LONG_FUNCTION for length in functions),
        **{f"{folder} code lines": sizes.get(folder, Size()).code for folder in ("tests", "benchmarks", "scripts")},
        "doc pages": pages,
        "doc words": words,
    }
    by_size = sorted(packages, key=lambda name: -packages[name].code)
    return {"totals": totals, "packages": {name: packages[name].code for name in by_size}}


def count_words(page: str) -> int:
    """Count the words of a page outside code blocks."""
    return len(re.sub(r"```.*?```", " ", page, flags=re.DOTALL).split())


def count_python(text: str) -> tuple[int, list[int]]:
    """Return the number of code lines of a Python file, and the number of lines of each function."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    functions = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            code -= _find_docstring(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
    return len(code), functions


def _find_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[int]:
    """Return the numbers of the lines of a docstring."""
    match node.body[:1]:
        case [ast.Expr(value=ast.Constant(value=str())) as first]:
            return set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return set()


def _add_file(size: Size, path: PurePosixPath, text: str) -> None:
    size.files += 1
    if path.suffix == ".py":
        code, functions = count_python(text)
        size.code += code
        size.functions += functions
        size.long_files += len(text.splitlines()) > LONG_FILE
    else:
        lines = sum(1 for line in text.splitlines() if line.strip())
        size.code += lines
        size.other += lines


def _get_package(path: PurePosixPath) -> str:
    """Return the package of a file: `src/stores`, `src/(top)`, or the folder at the top."""
    if path.parts[0] != "src":
        return path.parts[0]
    return f"src/{path.parts[2]}" if len(path.parts) > 3 else "src/(top)"


def _list_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S607
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def find_excesses(counts: Counts, limits: Counts) -> Iterator[str]:
    """Yield a message for each count that is above its limit or has none."""
    for section, names in counts.items():
        for name, count in names.items():
            limit = limits.get(section, {}).get(name)
            if limit is None:
                yield f"{name}: {count:,}, without a limit in [{section}] of {BUDGETS.name}"
            elif count > limit:
                yield f"{name}: {count:,}, limit {limit:,}: remove {count - limit:,}, or raise it in [{section}] of {BUDGETS.name}"


def format_counts(counts: Counts) -> Iterator[str]:
    """Yield a line for each count."""
    for section, names in counts.items():
        yield f"{section}:"
        yield from (f"  {name:30} {count:>8,}" for name, count in names.items())


def format_budgets(counts: Counts) -> str:
    """Return the text of budgets.toml with these counts as limits."""
    lines = [_HEAD]
    for section, names in counts.items():
        lines += [f"[{section}]", *(f'"{name}" = {count}' for name, count in names.items()), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
