"""Parsing of texts for a digest: sentences, table rows, key-value pairs, source listings; and the structs for lines of facts."""

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
"""The kind of a source. A conclusion is an assistant's message after its tool calls."""


class Fact(msgspec.Struct, array_like=True, gc=False):
    """One value with its key."""

    key: str
    value: str
    group: int
    """Facts of one object share a group and are written together. Group 0 is the source itself, others are its rows."""
    weight: float
    """How likely an agent needs a value of this form again."""
    used: int = 0
    """Number of other messages with the value."""
    last: int = -1
    """Place of its last use."""
    was: str | None = None
    """Its previous value, if the same source had another one."""
    prose: bool = False
    """True for a sentence; its worth is that of its values."""
    firm: bool = False
    """True if it matters for what it says, even if its values are elsewhere: an error, the outcome of an action, an answer."""
    again: bool = False
    """True if an earlier source contains it already; readers look it up there first."""
    cost: float = 4.0
    """Its tokens, estimated; see `update_cost`."""
    bundle: int = 0
    """Number of its group of parallel lists in the line, which are shown whole or not at all; 0 for none."""


class Line(msgspec.Struct, array_like=True, gc=False):
    """One source, and what is kept of it."""

    handle: str
    key: str
    """Equal if the same question is asked again; unique for a message."""
    seq: int
    """The source's place in the log; the newest one if the same question was asked again."""
    kind: Kind
    facts: list[Fact]
    names: list[str] = []
    """The arguments in the handle, which the facts belong to."""
    asked: list[str] = []
    """Names of all arguments of a call, nested ones included."""
    last: int = -1
    """Place of the last use of one of the names."""
    cost: float = 6.0
    """Tokens of the handle, estimated."""
    given: int = 0
    """The last group of arguments. Later groups, and group 0, are from the result."""
    lists: list[tuple[int, str]] = []
    """The lists that rows belong to, as `(first group, name)`, in order: passengers are not the owner."""
    counts: dict[str, int] = {}
    """By key, the number of values in a list of the source, so that a reader sees that there are more."""

    def find_list_name(self, group: int) -> str:
        """Return the name of the list that a group is in; empty if there is none."""
        lists = self.lists
        if not group or not lists or group < lists[0][0]:
            return ""
        return lists[bisect_right(lists, group, key=itemgetter(0)) - 1][1]


def update_cost(fact: Fact) -> None:
    """Compute and store the cost of a fact, which every step uses."""
    key = estimate_tokens(fact.key) if fact.key and not fact.group else 0.0
    fact.cost = round(1.5 + estimate_tokens(fact.value) + key, 1)


_SENTENCE_END = re.compile(r"[.!?؟।…。！？]+[\"')\]”’»]*")
_CLOSED = "。！？"
"""Ends of sentences that need no white space after them."""
_ITEM = re.compile(r"(?:^|\s)[A-Z]?\d\d?\.\Z")
"""The end of the number of a list item, which is no end of a sentence."""
_BULLET = re.compile(r"(?:[-*#>•–]+|\d{1,3}[.)])(?=\s)")
_BULLETS = frozenset("-*#>•–0123456789")
_NUMBERS = re.compile(r"\d+")
LONGEST, SHORTEST = 240, 60
"""Characters from which a sentence is split, and of the shortest part."""
_JOINTS = (
    re.compile(r"[;；:：][ ]|[ ][-–—][ ]|，"),
    re.compile(r",[ ](?=(?:and|but|so|because|which|then|und|aber|weil|et|mais|y|pero|e|mas)\b)", re.IGNORECASE),
    re.compile(r"(?<=[^\W\d_]{4})[ ](?=(?:and|but|so|because|oh|okay|then|anyway)\b)"),
    re.compile(r",[ ]"),
    re.compile(r"(?<=[^\W\d_]{4})[ ]|(?<=\d)[ ]"),
    re.compile(r"[ ]"),
)
"""Places where a long sentence is split, the best first. Hardly any clause ends after a short word: "it's five now in the"."""
_RULE = re.compile(r"[ |:+=-]*[-=]{2}[ |:+=-]*")
"""The line below the heading of a table."""
_LABEL = re.compile(r"\W*(?:[A-Za-z]?\d{1,3})?\W*")
_LIKE = 4
"""Sentences of one form that have full weight."""


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
    """Append a sentence without marks of lists and emphasis, in pieces of at most `LONGEST` characters."""
    text = _strip_emphasis(raw)
    if text[:1] in _BULLETS and (bullet := _BULLET.match(text)):
        text = text[bullet.end() :].strip()
    found += _split_long(text)


def _split_long(text: str) -> Iterator[str]:
    """Yield a text whole, or in parts of at most `LONGEST` characters that end at the best places."""
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
    """Return a line without marks of emphasis."""
    return clean(raw).replace("**", "").replace("`", "")


def parse_table(text: str) -> tuple[list[str], list[list[str]]] | None:
    """Return the header and the rows of a table (Markdown, CSV, TSV); None for any other text."""
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
    """Return True if the first line of a possible table has names of columns: lines of logs and code also have equal numbers of commas."""
    names = [cell.strip("\"' ") for cell in cells]
    return len(names) >= least and not any(
        not name or len(name) > MAX_KEY or name[0].isdigit() or "/" in name or ": " in name or name[-1] in ".;{"
        for name in names
    )


def rate_rarity(sentences: list[str]) -> list[float]:
    """Return a factor for each sentence: sentences that differ only in their numbers, as in a log, say little.

    So the line of a log that is unlike the others comes first.
    """
    forms = [_NUMBERS.sub("0", sentence[:MAX_VALUE]) for sentence in sentences]
    like = Counter(forms)
    return [(_LIKE / max(_LIKE, like[form])) ** 0.5 for form in forms]


def split_headings(text: str) -> tuple[str, dict[str, str]]:
    """Return a text without the headings of its tables, and the heading of each row: neither says anything without the other."""
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
    """Return the names of columns in a line; empty if it has one column or contains prose."""
    cells = [cell.strip() for cell in _strip_emphasis(line).strip("| ").split("|")]
    heading = " | ".join(cells)
    return heading if "|" in line and max(map(len, cells)) <= MAX_KEY and len(heading) <= MAX_VALUE else ""


def is_bare_label(sentence: str) -> bool:
    """Return True for a piece that is only a number or a label, such as `[ 17%]` or `D11.`."""
    return _LABEL.fullmatch(sentence) is not None


LEAST = 4
"""Least lines of source in a listing."""
MOST = 0.5
"""Least share of the lines of a listing that are source or matches."""
NAMES = 24
"""Most definitions, and files with matches, that are kept of one listing."""
READ = 2_000
"""Lines that are read."""
_MATCH: Final = re.compile(r"^([^\s:()'\"]*[/.\\][^\s:()'\"]*):(\d+)[:-]")
"""A line of the result of a file search: path, number, source."""
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
    """A summary of a listing."""

    places: list[str]
    """Places of matches: `path:line,line`."""
    lines: str
    """The lines that it shows, `1-56`, or their number; empty for matches."""
    names: list[str]
    """Names that are defined in it."""
    before: str
    """The text above the first line of source."""


def parse_listing(text: str) -> Listing | None:
    """Return a summary of a view of a source file, or of matches in files; None for any other text."""
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
    """Return True for a piece of a program, such as an argument of an edit: all of its lines are source."""
    lines = [line for line in islice(text.splitlines(), READ) if line.strip()]
    return bool(lines) and all(_SOURCE.search(line) or _DEFINITION.match(line) for line in lines)


def _is_ascending(numbers: list[int]) -> bool:
    return all(before < after for before, after in pairwise(numbers))


def _list_places(matches: list[re.Match[str]]) -> list[str]:
    """Return each file once, with the numbers of its lines."""
    files: dict[str, list[str]] = {}
    for found in matches:
        files.setdefault(found[1], []).append(found[2])
    return [f"{path}:{','.join(numbers[:6])}" for path, numbers in islice(files.items(), NAMES)]


MAX_LEAVES = 400
"""Most facts that are read from one source, from its beginning."""
LINES, DEFINES = 1.0, 0.8
"""Weights of the line numbers of a file view, and of a name that is defined in it."""


_PAIR = re.compile(r"([^\W\d][\w ./()#-]{0,39}?)(?::\s+|\s=\s+|：\s*)(?=\S)")


def keep_ends(text: str) -> str:
    """Return a text, or the head and the tail of a long one."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT * 3 // 5] + "\n" + text[-MAX_TEXT * 2 // 5 :]


def read_text_facts(text: str, *, said: bool) -> Iterator[Fact]:
    """Yield the facts of a text: rows of a table, pairs from lines of the form `key: value`, otherwise sentences."""
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
    """Yield a listing's places, lines and definitions, but none of its source."""
    if listing.lines:
        yield Fact("lines", listing.lines, 0, LINES)
    for key, values in (("", listing.places), ("defines", listing.names)):
        yield from (Fact(key, value[:MAX_VALUE], 0, DEFINES) for value in values)


def _is_pair(pair: re.Match[str], sentence: str) -> bool:
    """Return True if a possible `key: value` is one, and no sentence, address or assignment in a program."""
    if len(sentence) - pair.end() > 80 or pair[1].count(" ") > 3 or "://" in sentence[:16]:
        return False
    return "=" not in pair[0] or "(" not in sentence


def _iter_row_facts(names: list[str], rows: list[list[str]]) -> Iterator[Fact]:
    for number, row in enumerate(rows, 1):
        for name, value in zip(names, row, strict=False):
            if value:
                yield Fact(name, value, number, weigh_value(value), prose=" " in value)


def deduplicate_facts(facts: Iterable[Fact]) -> list[Fact]:
    """Return each fact once per group, with its cost."""
    seen: set[tuple[str, str, int]] = set()
    kept = []
    for fact in islice(facts, MAX_LEAVES):
        identity = (fact.key, fact.value, fact.group)
        if fact.bundle or identity not in seen:
            seen.add(identity)
            update_cost(fact)
            kept.append(fact)
    return kept
