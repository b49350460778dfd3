"""`make english`: finds names, docstrings and sentences that are not plain English.

Names that look like a mistake and are none are in `ALLOWED`, each with the reason.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

KINDS: Final = {
    "participle": "a function that is named by a participle (`told`, `opened`) instead of a verb in the imperative",
    "gerund": "a module that is named by an activity (`telling`) instead of a subject",
    "opening": "a docstring that begins with What, Who, How, Whether, Whose or Where instead of saying what is done",
    "see": "a docstring that says nothing but `See X`",
    "document": "a document that is not in the repository is mentioned",
    "word": "a word of the dialect that this project was once written in, in a docstring, a comment or a page",
    "long": "a sentence of more than 40 words, in a docstring, a comment or a page",
}
"""The kinds of findings."""
LONGEST: Final = 40
"""Words that a sentence may have."""

ALLOWED: Final = {
    "settled": "a documented method of 0.1: hf.memories.settled()",
    "leased_by": "a method of the store protocol, which stores of others implement",
    "learned": "a method of the store protocol, which stores of others implement",
    "redacted": "a documented method of 0.1",
    "redacted_json": "a documented method of 0.1",
    "redacted_value": "a documented method of 0.1",
    "_unsupported_upgrade_warning": "overrides a method of uvicorn",
    "need": "a verb",
    "embed": "a verb",
    "feed": "a verb",
    "seed": "a verb",
    "shed": "a verb",
    "proceed": "a verb",
    "exceed": "a verb",
    "speed": "a noun",
    "finding": "a noun: what a check found",
    "streaming": "the subject of a module: how replies are streamed",
    "outgoing": "an adjective: media on their way out",
    "scoring": "the subject of a module: how results are scored",
    "ranking": "the subject of a module: how results are ranked",
    "caching": "the subject of a module: how vectors are cached",
    "escaping": "the subject of a module: how quoted text is escaped",
    "accounting": "the subject of a module: who uses which resources",
    "testing": "what the package is for; users import it",
    "matching": "the subject of a package: session matching",
    "counting": "the subject of a module: how tokens are counted",
    "training": "the subject of a module",
}
"""Names, or first or last words of names, that are no mistakes, and why."""

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = ROOT / "src" / "holdfast"
_IRREGULAR: Final = frozenset(
    """
    told said asked found made held kept sent given taken written begun gone known seen shown laid left lost met paid spoken stood thought
    understood won worn drawn driven fallen forgotten got grown hidden born built brought bought caught dealt done felt fought heard led
    lent meant sold slept spent taught torn thrown
    """.split()  # noqa: SIM905 - words
)
_OPENING: Final = re.compile(r"(What|Who|How|Whether|Whose|Where)\b")
_SEE: Final = re.compile(r"See \S+\.?$")
_DOCUMENT: Final = re.compile(r"\bDESIGN\.md|\bseed 00\d")
_WORDS: Final = re.compile(
    r"\b(tells? (?:of|how|what|whether|who)|(?:is|are|was|were|be|been) told|told (?:of|how|what|whether|who)|whoever|whatsoever"
    r"|stands? (?:in|for itself|there|behind|beside)|stood (?:in|there)|beside|farther|put up|comes? of it|as it stands|as they stand"
    r"|what (?:became|becomes) of|makes? room|goes on from|of whom|in vain|by and by|mended?|thereof|lest|ought)\b",
    re.IGNORECASE,
)
_BEFORE_STATEMENT: Final = frozenset(
    {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
)
_TABLE_LINE: Final = re.compile(r"^.*\S(?:  +|\t|├|└|->).*$", re.MULTILINE)
"""A line of a table or a tree in a docstring."""
_CODE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_NOT_PROSE: Final = re.compile(r"^(?:\||<!--).*$", re.MULTILINE)
"""A line of a table of a page, or a comment."""
_PARAGRAPH: Final = re.compile(r"(?:^.*\S.*(?:\n|\Z))+", re.MULTILINE)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z0-9`*\[(\"])|\n\s*\n|\n(?=\s*(?:[-*|>#]|\d+\.) )|(?<=\.)\n")


class Finding(NamedTuple):
    """Something that is not plain English."""

    kind: str
    place: str
    text: str


def main() -> int:
    """Print the findings. Return 1 if there are any."""
    findings = list(find_all())
    for one in findings:
        print(f"{one.place}: {one.kind}: {one.text}")
    if not findings:
        print("Names, docstrings and pages are in plain English, as far as this script can tell.")
        return 0
    print("\nWrite these in plain English, as CONTRIBUTING.md says:")
    for kind in dict.fromkeys(one.kind for one in findings):
        print(f"  {kind}: {KINDS[kind]}")
    return 1


def find_all() -> Iterator[Finding]:
    """Yield the findings in the source and in the documentation."""
    for path in sorted(SOURCE.rglob("*.py")):
        yield from find_in_module(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    pages = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md")))
    for path in pages:
        yield from find_in_page(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))


def find_in_module(where: str, source: str) -> Iterator[Finding]:
    """Yield the findings in the source of a module; `where` is its path, from the root of the repository."""
    path = Path(where)
    name = path.parent.name if path.stem == "__init__" else path.stem
    if name.rpartition("_")[2].endswith("ing") and not _is_allowed(name):
        yield Finding("gerund", where, name)
    for at, line in enumerate(source.splitlines(), 1):
        if _DOCUMENT.search(line):
            yield Finding("document", f"{where}:{at}", line.strip())
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        place = f"{where}:{node.lineno}"
        doc = ast.get_docstring(node) or ""
        first = doc.partition("\n")[0]
        if _OPENING.match(doc):
            yield Finding("opening", place, f"{node.name}: {first}")
        if _SEE.match(doc):
            yield Finding("see", place, f"{node.name}: {first}")
        if not isinstance(node, ast.ClassDef) and not _is_property(node) and _is_participle(node.name):
            yield Finding("participle", place, node.name)
    yield from _find_in_prose(((f"{where}:{line}", text) for line, text in _list_prose(source)))


def find_in_page(where: str, text: str) -> Iterator[Finding]:
    """Yield the findings in a page, without its code blocks and tables; `where` is its path."""
    prose = _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
    prose = _NOT_PROSE.sub("", prose)
    paragraphs = _PARAGRAPH.finditer(prose)
    yield from _find_in_prose((f"{where}:{prose.count(chr(10), 0, one.start()) + 1}", one[0]) for one in paragraphs)


def _find_in_prose(parts: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Yield words of the dialect and long sentences.

    Args:
        parts: place and text of each docstring, comment or paragraph.
    """
    for place, text in parts:
        plain = re.sub(r"`[^`]*`|\]\([^)]*\)", "X", text)
        for word in _WORDS.finditer(plain):
            yield Finding(
                "word",
                place,
                f"{word[0]}: …{' '.join(plain[max(word.start() - 40, 0) : word.end() + 40].split())}…",
            )
        for sentence in _SENTENCE_END.split(_TABLE_LINE.sub("\n\n", plain)):
            if len(sentence.split()) > LONGEST:
                yield Finding("long", place, " ".join(sentence.split())[:160])


def _list_prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of docstrings, of the texts under attributes and constants, and of comments."""
    starts_statement, depth = True, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
            continue
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        if token.type == tokenize.STRING and starts_statement and not depth:
            yield token.start[0], token.string.lstrip("r").strip('"')
        starts_statement = token.type in _BEFORE_STATEMENT


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(one) or ast.unparse(one).endswith(".setter") for one in node.decorator_list)


def _is_participle(name: str) -> bool:
    word = name.strip("_").partition("_")[0]
    return (word in _IRREGULAR or word.endswith("ed")) and not (_is_allowed(word) or name in ALLOWED)


def _is_allowed(name: str) -> bool:
    return name in ALLOWED or name.rpartition("_")[2] in ALLOWED


if __name__ == "__main__":
    sys.exit(main())
