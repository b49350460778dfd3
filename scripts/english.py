"""`make english`: finds names, docstrings, texts and sentences that are not plain English.

It reads the source with its help texts, errors and log lines, the templates of the inspector, all pages, and the examples. Of tests,
benchmarks and scripts it reads the names. Names that look like a mistake and are none are in `ALLOWED`, each with the reason.
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
FIRST_RELEASE: Final = "\n## 0.1.0 "
"""The heading in CHANGELOG.md from which on entries stay as they were published."""
LONGEST: Final = 40
"""Words that a sentence may have."""

ALLOWED: Final = {
    "settled": "a documented method of 0.1: hf.memories.settled()",
    "leased_by": "a method of the store protocol, which stores of others implement",
    "learned": "a method of the store protocol, which stores of others implement",
    "redacted": "documented methods of 0.1: redacted, redacted_json, redacted_value",
    "_unsupported_upgrade_warning": "overrides a method of uvicorn",
    "embed": "a verb",
    "structured_output": "overrides a method of Strands",
    "named_only": "an adjective: a function with named parameters only",
    "ping": "a noun",
    "timing": "a noun",
    "rolling": "an adjective: rolling upgrades",
    "reasoning": "a noun: the reasoning of a model",
    "editing": "part of a name: Anthropic's context editing",
    "poisoning": "part of a term: memory poisoning",
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
_TAG: Final = re.compile(r"\{#.*?#\}|\{%.*?%\}|<[^>]*>", re.DOTALL)
"""A tag or comment of a template."""
_FEWEST_SPACES: Final = 2
"""Spaces from which on a string is taken for a text. A string with `|` is a pattern or a table of words."""
_LONG_LIST: Final = 400
"""Characters from which on a text without punctuation is taken for a list of words."""
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
    """Yield the findings in the source, the tests and the documentation."""
    for path in _list_files("*.py", "src/holdfast", "examples"):
        yield from find_in_module(*_read(path))
    for path in _list_files("*.py", "tests", "benchmarks", "scripts"):
        yield from find_names(*_read(path))
    for path in _list_files("*.html", "src/holdfast/server/inspector"):
        yield from find_in_template(*_read(path))
    for path in (*sorted(ROOT.glob("*.md")), *_list_files("*.md", "docs", "examples", "src/holdfast")):
        findings = find_in_page(*_read(path))
        yield from (one for one in findings if path.name != "CHANGELOG.md" or one.kind != "long")


def find_names(where: str, source: str) -> Iterator[Finding]:
    """Yield the names in a module that are not plain English; `where` is its path, from the root of the repository."""
    path = Path(where)
    name = path.parent.name if path.stem == "__init__" else path.stem
    if name.rpartition("_")[2].endswith("ing") and not _is_allowed(name):
        yield Finding("gerund", where, name)
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and not _is_noun(node)
            and _is_participle(node.name)
        ):
            yield Finding("participle", f"{where}:{node.lineno}", node.name)


def find_in_module(where: str, source: str) -> Iterator[Finding]:
    """Yield the findings in the source of a module; `where` is its path, from the root of the repository."""
    yield from find_names(where, source)
    for at, line in enumerate(source.splitlines(), 1):
        if _DOCUMENT.search(line):
            yield Finding("document", f"{where}:{at}", line.strip())
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        place = f"{where}:{node.lineno}"
        doc = ast.get_docstring(node) or ""
        first = doc.partition("\n")[0]
        if _OPENING.match(doc):
            yield Finding("opening", place, f"{node.name}: {first}")
        if _SEE.match(doc):
            yield Finding("see", place, f"{node.name}: {first}")
    yield from _find_in_prose(((f"{where}:{line}", text) for line, text in _list_prose(source)))
    yield from _find_words((f"{where}:{line}", text) for line, text in _list_texts(tree))


def find_in_page(where: str, text: str) -> Iterator[Finding]:
    """Yield the findings in a page, without its code blocks, its tables and old releases; `where` is its path."""
    text = text.partition(FIRST_RELEASE)[0]
    prose = _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
    prose = _NOT_PROSE.sub("", prose)
    paragraphs = _PARAGRAPH.finditer(prose)
    yield from _find_in_prose((f"{where}:{prose.count(chr(10), 0, one.start()) + 1}", one[0]) for one in paragraphs)


def find_in_template(where: str, text: str) -> Iterator[Finding]:
    """Yield words of the dialect in a template of the inspector; `where` is its path."""
    lines = enumerate(_TAG.sub(" ", text).splitlines(), 1)
    yield from _find_words((f"{where}:{at}", line) for at, line in lines)


def _find_in_prose(parts: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Yield words of the dialect and long sentences.

    Args:
        parts: place and text of each docstring, comment or paragraph.
    """
    for place, text in parts:
        yield from _find_words([(place, text)])
        for sentence in _SENTENCE_END.split(_TABLE_LINE.sub("\n\n", _strip_code(text))):
            if len(sentence.split()) > LONGEST:
                yield Finding("long", place, " ".join(sentence.split())[:160])


def _find_words(parts: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Yield words of the dialect; `parts` are places and texts."""
    for place, text in parts:
        plain = _strip_code(text)
        for word in _WORDS.finditer(plain):
            near = plain[max(word.start() - 40, 0) : word.end() + 40]
            yield Finding("word", place, f"{word[0]}: …{' '.join(near.split())}…")


def _strip_code(text: str) -> str:
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "X", text)


def _list_files(pattern: str, *folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob(pattern))


def _read(path: Path) -> tuple[str, str]:
    """Return the path of a file, from the root of the repository, and its text."""
    return str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def _list_texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of strings that people read: help texts, errors, log lines, descriptions. Their names are not among them."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        if node.value.count(" ") >= _FEWEST_SPACES and "|" not in node.value and not _is_word_list(node.value):
            yield node.lineno, node.value


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


def _is_noun(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True for properties and fixtures, which are called by what they are."""
    decorators = [ast.unparse(one) for one in node.decorator_list]
    return any("property" in one or "fixture" in one or one.endswith(".setter") for one in decorators)


def _is_word_list(text: str) -> bool:
    """Return True for a table of words, one after the other without punctuation."""
    return len(text) > _LONG_LIST and not re.search(r"[.,:;`]", text)


def _is_participle(name: str) -> bool:
    word = name.strip("_").partition("_")[0]
    return (word in _IRREGULAR or (word.endswith("ed") and not word.endswith("eed"))) and not (
        _is_allowed(word) or name in ALLOWED
    )


def _is_allowed(name: str) -> bool:
    return name in ALLOWED or name.rpartition("_")[2] in ALLOWED


if __name__ == "__main__":
    sys.exit(main())
