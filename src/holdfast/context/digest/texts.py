"""Parse texts for a digest into facts: sentences, rows of tables, key-value pairs and listings of source files.

Also defines `Fact` and `Line`, the structs in which a digest stores what it read.
"""

# ruff: noqa: RUF001 (punctuation of other scripts is what some patterns are about; lists of words stay readable)

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count as counting
from itertools import islice, pairwise, repeat
from operator import itemgetter
from typing import Final, Literal, NamedTuple

import msgspec

from holdfast.context.values import (
    COLONS,
    MAX_KEY,
    MAX_TEXT,
    MAX_VALUE,
    clean,
    estimate_tokens,
    has_error,
    weigh_sentence,
    weigh_value,
)
from holdfast.recall.chunks import is_abbreviated

Kind = Literal["call", "user", "assistant", "conclusion", "other"]
"""The kind of a source. A `conclusion` is an assistant's message after tool calls; `other` is quoted text, a late result and the like."""


class Fact(msgspec.Struct, array_like=True, gc=False):
    """A value with its key, or a sentence."""

    key: str
    value: str
    group: int
    """Number of the object to which the fact belongs. Facts of an object are written together. 0 is the source itself, others are its
    rows."""
    weight: float
    """Likelihood that an agent needs a value of this form again. It is not a probability, and may exceed 1."""
    used: int = 0
    """Number of other messages that use the value."""
    last: int = -1
    """`seq` of the message that used the value last; -1 if none did."""
    was: str | None = None
    """Previous value of the same thing; None if it did not change."""
    prose: bool = False
    """True if the value is a sentence."""
    firm: bool = False
    """True for an error, the outcome of an action, or an answer. Such a fact matters even if its values also appear elsewhere."""
    again: bool = False
    """True if an earlier source already contains the value."""
    cost: float = 4.0
    """Estimated tokens; see `update_cost`."""
    bundle: int = 0
    """Number of the bundle of parallel lists to which the fact belongs; 0 if it belongs to none. A bundle is shown completely or not at
    all."""


class Line(msgspec.Struct, array_like=True, gc=False):
    """The facts that are kept of one source: a message, or a tool call with its result. It becomes one line of the digest."""

    handle: str
    """First words of the line, which name the source: a tool with its most important arguments, or an author."""
    key: str
    """Identifies the source. Calls of one tool with the same arguments have the same key; the key of a message is unique."""
    seq: int
    """`seq` of the source's unit; of the newest one if the same call was repeated."""
    kind: Kind
    facts: list[Fact]
    names: list[str] = []
    """The arguments in the handle."""
    asked: list[str] = []
    """Names of all arguments of a call, nested ones included."""
    last: int = -1
    """`seq` of the message that last used one of `names`; -1 if none did."""
    cost: float = 6.0
    """Estimated tokens of the handle."""
    given: int = 0
    """Groups from 1 to this number belong to the arguments of a call. Later groups, and group 0, belong to its result."""
    lists: list[tuple[int, str]] = []
    """The lists to which rows belong, as `(first group, name)`, in order. They keep rows of different lists apart, such as passengers and
    flights."""
    counts: dict[str, int] = {}
    """By key, the number of values in a list of the source, so that a reader sees how many are left out."""

    def find_list_name(self, group: int) -> str:
        """Return the name of the list to which a row belongs; empty if there is none."""
        lists = self.lists
        if not group or not lists or group < lists[0][0]:
            return ""
        return lists[bisect_right(lists, group, key=itemgetter(0)) - 1][1]


def update_cost(fact: Fact) -> None:
    """Estimate the tokens of a fact, and store them in `Fact.cost`."""
    key = estimate_tokens(fact.key) if fact.key and not fact.group else 0.0
    fact.cost = round(1.5 + estimate_tokens(fact.value) + key, 1)


_SENTENCE_END = re.compile(r"[.!?؟।…。！？]+[\"')\]”’»]*")
_CLOSED = "。！？"
"""Characters that end a sentence even without white space after them."""
_ITEM = re.compile(r"(?:^|\s)[A-Z]?\d\d?\.\Z")
"""Matches the number of a list item. The full stop after it does not end a sentence."""
_BULLET = re.compile(r"(?:[-*#>•–]+|\d{1,3}[.)])(?=\s)")
_BULLETS = frozenset("-*#>•–0123456789")
_NUMBERS = re.compile(r"\d+")
LONGEST, SHORTEST = 240, 60
"""A sentence with more than `LONGEST` characters is split into parts of at least `SHORTEST` characters."""
_JOINTS = (
    re.compile(r"[;；:：][ ]|[ ][-–—][ ]|，"),
    re.compile(r",[ ](?=(?:and|but|so|because|which|then|und|aber|weil|et|mais|y|pero|e|mas)\b)", re.IGNORECASE),
    re.compile(r"(?<=[^\W\d_]{4})[ ](?=(?:and|but|so|because|oh|okay|then|anyway)\b)"),
    re.compile(r",[ ]"),
    re.compile(r"(?<=[^\W\d_]{4})[ ]|(?<=\d)[ ]"),
    re.compile(r"[ ]"),
)
"""Patterns after which a long sentence may be split, the best first.

Some require a long word before the split, because hardly any clause ends after a short one: "it's five now in the"."""
_RULE = re.compile(r"[ |:+=-]*[-=]{2}[ |:+=-]*")
"""Matches the line below the heading of a table."""
_LABEL = re.compile(r"\W*(?:[A-Za-z]?\d{1,3})?\W*")
_LIKE = 4
"""Number of sentences of the same form that have full weight. If there are more, each has less."""


def split_text(text: str) -> list[str]:
    """Split `text` into sentences and list items of at most `LONGEST` characters."""
    found: list[str] = []
    for line in text.splitlines():
        start = 0
        for end in _SENTENCE_END.finditer(line):
            until, mark = end.end(), end.group()
            if not (line[until : until + 1].isspace() or mark[-1] in _CLOSED):
                continue
            if mark != "." or not (_ITEM.search(line, max(0, until - 5), until) or is_abbreviated(line, until)):
                _add_pieces(line[start:until], found)
                start = until
        _add_pieces(line[start:], found)
    return found


def _add_pieces(raw: str, found: list[str]) -> None:
    """Append a sentence to `found`, in pieces of at most `LONGEST` characters, without bullets and Markdown emphasis."""
    text = _strip_emphasis(raw)
    if text[:1] in _BULLETS and (bullet := _BULLET.match(text)):
        text = text[bullet.end() :].strip()
    found += _split_long(text)


def _split_long(text: str) -> Iterator[str]:
    """Yield a text in parts of at most `LONGEST` characters. A long text is split at the best places in `_JOINTS`."""
    while len(text) > LONGEST:
        ideal = len(text) / -(-len(text) // LONGEST)
        until = LONGEST
        for joint in _JOINTS:
            places = [found.end() for found in joint.finditer(text, SHORTEST, LONGEST)]
            if places:
                until = min(places, key=lambda place: abs(place - ideal))
                break
        yield text[:until].strip()
        text = text[until:].strip()
    if text:
        yield text


def _strip_emphasis(raw: str) -> str:
    """Return a line without Markdown marks of bold text and code."""
    return clean(raw).replace("**", "").replace("`", "")


def parse_table(text: str) -> tuple[list[str], list[list[str]]] | None:
    """Return the column names and the rows of a table in Markdown, CSV or TSV; None for any other text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < 3:
        return None
    for mark in ("|", "\t", ";", ","):
        columns = lines[0].count(mark)
        if columns and all(line.count(mark) == columns for line in lines[1:12]):
            if mark != "|" and not _is_header(lines[0].split(mark), 2 if mark == "\t" else 3):
                continue
            if any(len(cell.strip()) > MAX_KEY for cell in lines[0].split(mark)):
                continue
            cells = [line.strip(mark if mark == "|" else "").split(mark) for line in lines]
            names = [clean(name).strip("*\"' ")[:MAX_KEY] for name in cells[0]]
            rows = [[clean(cell).strip("\"'")[:MAX_VALUE] for cell in row] for row in cells[1:]]
            return names, [row for row in rows if mark != "|" or any(cell.strip(" :-") for cell in row)]
    return None


def _is_header(cells: list[str], least: int) -> bool:
    """Return True if the first line of a possible table consists of column names.

    This check is needed because lines of logs and code may have equal numbers of commas too.

    Args:
        cells: the cells of the first line.
        least: minimum number of columns.
    """
    names = [cell.strip("\"' ") for cell in cells]
    return len(names) >= least and not any(
        not name or len(name) > MAX_KEY or name[0].isdigit() or "/" in name or ": " in name or name[-1] in ".;{"
        for name in names
    )


def rate_rarity(sentences: list[str]) -> list[float]:
    """Return a factor of at most 1 for each sentence. It is lower for sentences that differ from many others only in their numbers.

    In a log, the line that is unlike the others is then worth most.
    """
    forms = [_NUMBERS.sub("0", sentence[:MAX_VALUE]) for sentence in sentences]
    like = Counter(forms)
    return [(_LIKE / max(_LIKE, like[form])) ** 0.5 for form in forms]


def split_headings(text: str) -> tuple[str, dict[str, str]]:
    """Return a text without the headings of its tables, and the heading of each table row, by the text of the row."""
    lines = text.splitlines()
    headings: dict[str, str] = {}
    kept: list[str] = []
    heading = ""
    for line in lines:
        if "|" in line and heading:
            kept.append(line)
            headings[_strip_emphasis(line)] = heading
        elif kept and _RULE.fullmatch(line.strip()) and (heading := _parse_heading(kept[-1])):
            kept.pop()
        else:
            kept.append(line)
            heading = ""
    return "\n".join(kept), headings


def _parse_heading(line: str) -> str:
    """Return the column names in a line, joined by ` | `; empty if the line has a single column or contains prose."""
    cells = [cell.strip() for cell in _strip_emphasis(line).strip("| ").split("|")]
    heading = " | ".join(cells)
    return heading if "|" in line and max(map(len, cells)) <= MAX_KEY and len(heading) <= MAX_VALUE else ""


def is_bare_label(sentence: str) -> bool:
    """Return True if a sentence is only a number or a label, such as `[ 17%]` or `D11.`."""
    return _LABEL.fullmatch(sentence) is not None


LEAST = 4
"""Minimum number of lines of a listing that are source code or search matches."""
MOST = 0.5
"""Minimum fraction of the lines of a listing that are source code or search matches."""
NAMES = 24
"""Most names of definitions, or of files with matches, that are kept of one listing."""
READ = 2_000
"""Number of lines of a text, from its beginning, that are examined."""
_MATCH: Final = re.compile(r"^([^\s:()'\"]*[/.\\][^\s:()'\"]*):(\d+)[:-]")
"""Matches a line in the result of a file search: path, line number, source code."""
_NUMBERED: Final = re.compile(r"^\s*(\d{1,6})(?:\t|[:|→│]|  )")
_DEFINITION: Final = re.compile(
    r"^\s*(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub(?:\([a-z]+\))?|unsafe|virtual"
    r"|override|extern)\s+)*(?:def|class|func|function|fn|struct|enum|interface|trait|module|namespace|sub)\s+"
    r"(?:\([^)]*\)\s*)?([^\W\d]\w*(?:(?:\.|::)\w+)*)"
)
_SOURCE: Final = re.compile(
    r"[;{}]\s*$|^\s*[})\]]+[,;:)]*\s*$"
    r"|^\s*(?:import\s+[\w.{*]|from\s+[\w.]+\s+import\b|(?:if|elif|while|for|with|except|switch|match)\b.*[:{]\s*$|(?:else|try|finally)\s*[:{]"
    r"|return\b|raise\s+\w|yield\b|@\w+[\w.]*(?:\(.*)?$|#include\b|//|/\*|\*/)"
    r"|^\s*(?:const|let|var|auto|int|self|this)\b.*=|^\s+[\w.\[\]'\"]+(?:\s*:\s*\w[\w\[\], .|]*)?\s[-+*/|&]?=\s"
    r"|^\s+[\w.]+\(.*\)?[,:]?\s*$"
)
_TRACEBACK: Final = "Traceback (most recent call last)"


class Listing(NamedTuple):
    """A summary of a text that shows a source file, or matches of a search in files."""

    places: list[str]
    """Positions of the matches, in the form `path:line,line`; empty for a source file."""
    lines: str
    """The lines of the source file that are shown, such as `1-56`, or their number; empty for matches."""
    names: list[str]
    """Names that are defined in the source file."""
    before: str
    """The text before the first line of source code."""


def parse_listing(text: str) -> Listing | None:
    """Return a summary of a text that shows a source file or matches of a search in files; None for any other text."""
    lines = [line for line in islice(text.splitlines(), READ) if line.strip()]
    if len(lines) < LEAST or _TRACEBACK in text:
        return None
    least = max(LEAST, MOST * len(lines))
    matches = [found for line in lines if (found := _MATCH.match(line))]
    if len(matches) >= least:
        return Listing(_list_places(matches), "", [], "")
    numbered = [(at, found) for at, line in enumerate(lines) if (found := _NUMBERED.match(line))]
    ascending = len(numbered) >= least and _is_ascending([int(found[1]) for _, found in numbered])
    bare = [line[found.end() :] if (found := _NUMBERED.match(line)) else line for line in lines] if ascending else lines
    source = [at for at, line in enumerate(bare) if _SOURCE.search(line) or _DEFINITION.match(line)]
    if len(source) < (LEAST if ascending else least):
        return None
    names = dict.fromkeys(found[1] for line in bare if (found := _DEFINITION.match(line)))
    first = numbered[0][0] if ascending else source[0]
    shown = f"{numbered[0][1][1]}-{numbered[-1][1][1]}" if ascending else f"{len(text.splitlines())} in all"
    return Listing([], shown, list(names)[:NAMES], "\n".join(lines[:first]) if ascending else "")


def is_source(text: str) -> bool:
    """Return True if all lines of a text look like source code, as in an argument of a call that edits a file."""
    lines = [line for line in islice(text.splitlines(), READ) if line.strip()]
    return bool(lines) and all(_SOURCE.search(line) or _DEFINITION.match(line) for line in lines)


def _is_ascending(numbers: list[int]) -> bool:
    return all(before < after for before, after in pairwise(numbers))


def _list_places(matches: list[re.Match[str]]) -> list[str]:
    """Return each file with matches once, as `path:line,line`, with at most six line numbers."""
    files: dict[str, list[str]] = {}
    for found in matches:
        files.setdefault(found[1], []).append(found[2])
    return [f"{path}:{','.join(numbers[:6])}" for path, numbers in islice(files.items(), NAMES)]


MAX_LEAVES = 400
"""Most facts that are read from one source. Reading begins at the beginning of the source."""
LINES, DEFINES = 1.0, 0.8
"""`LINES` is the weight of the shown line numbers of a source file, `DEFINES` that of a name defined in it or of the position of
matches."""


_PAIR = re.compile(r"([^\W\d][\w ./()#-]{0,39}?)(?::\s+|\s=\s+|：\s*)(?=\S)")


def keep_ends(text: str) -> str:
    """Return a text; if it is longer than `MAX_TEXT`, only its beginning (three fifths) and its end (two fifths)."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT * 3 // 5] + "\n" + text[-MAX_TEXT * 2 // 5 :]


def read_text_facts(text: str, *, said: bool) -> Iterator[Fact]:
    """Yield the facts of a text: rows of a table, pairs from lines of the form `key: value`, and otherwise sentences.

    Args:
        text: the text.
        said: True for a message, False for a tool result or an argument. A message is not parsed as a table or as source code.
    """
    text = keep_ends(text)
    table = None if said else parse_table(text)
    if table is not None:
        yield from _iter_row_facts(*table)
        return
    listing = None if said else parse_listing(text)
    if listing is not None:
        yield from _iter_listing_facts(listing)
        text = listing.before
    counter = counting(1)
    block, keys = 0, set[str]()
    text, headings = split_headings(text)
    sentences = split_text(text)
    for sentence, rare in zip(sentences, repeat(1.0) if said else rate_rarity(sentences), strict=False):
        if not said and len(sentences) > 1 and is_bare_label(sentence):
            continue
        pair = _PAIR.match(sentence) if ": " in sentence or " = " in sentence or "：" in sentence else None
        error = 1.5 if not said and has_error(sentence) and not sentence.endswith(COLONS) else 0.0
        if sentence in headings:
            keys.clear()
            weight = weigh_sentence(sentence) * rare + error
            yield Fact(headings[sentence], sentence.strip("| "), next(counter), weight, prose=True, firm=error > 0)
        elif pair and _is_pair(pair, sentence):
            key, value = pair[1].strip(), sentence[pair.end() :].strip()
            # A repeated key begins another record: its values do not belong to the earlier ones.
            if key in keys or (said and not keys):
                block = next(counter)
                keys.clear()
            keys.add(key)
            yield Fact(key, value, block, weigh_sentence(value) * rare + error, prose=True, firm=error > 0)
        else:
            if said:
                keys.clear()
            weight = weigh_sentence(sentence) * rare + error
            yield Fact("", sentence, next(counter), weight, prose=True, firm=error > 0)


def _iter_listing_facts(listing: Listing) -> Iterator[Fact]:
    """Yield the shown lines, positions of matches and defined names of a listing. Its source code is left out."""
    if listing.lines:
        yield Fact("lines", listing.lines, 0, LINES)
    for key, values in (("", listing.places), ("defines", listing.names)):
        yield from (Fact(key, value[:MAX_VALUE], 0, DEFINES) for value in values)


def _is_pair(pair: re.Match[str], sentence: str) -> bool:
    """Return True if a match of `_PAIR` is a key with its value, and not a sentence, an address or an assignment in source code."""
    if len(sentence) - pair.end() > 80 or pair[1].count(" ") > 3 or "://" in sentence[:16]:
        return False
    return "=" not in pair[0] or "(" not in sentence


def _iter_row_facts(names: list[str], rows: list[list[str]]) -> Iterator[Fact]:
    for number, row in enumerate(rows, 1):
        for name, value in zip(names, row, strict=False):
            if value:
                yield Fact(name, value, number, weigh_value(value), prose=" " in value)


def deduplicate_facts(facts: Iterable[Fact]) -> list[Fact]:
    """Return the facts without repetitions inside a group, and set the cost of each. At most `MAX_LEAVES` facts are read."""
    seen: set[tuple[str, str, int]] = set()
    kept = []
    for fact in islice(facts, MAX_LEAVES):
        identity = (fact.key, fact.value, fact.group)
        if fact.bundle or identity not in seen:
            seen.add(identity)
            update_cost(fact)
            kept.append(fact)
    return kept
