"""Texts as a digest reads them: sentences, rows of tables, pairs of keys and values, listings of source files; and the lines of facts they become."""

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
"""What a source is. A conclusion is what the assistant said when its calls were done."""


class Fact(msgspec.Struct, array_like=True, gc=False):
    """One value with the key it came with."""

    key: str
    value: str
    group: int
    """Facts of one object share a group: they are told together. 0 is the source itself, others are rows in it."""
    weight: float
    """How likely an agent comes back for a value of this form."""
    used: int = 0
    """How often other messages said the value."""
    last: int = -1
    """Where it was said last."""
    was: str | None = None
    """The value it had before, when the same source told another one."""
    prose: bool = False
    """A sentence: worth what the values in it are worth."""
    firm: bool = False
    """Told for what it says, whatever of it is told elsewhere: an error, the outcome of an action, an answer."""
    again: bool = False
    """Told by an earlier source already, which is where it is looked for first."""
    cost: float = 4.0
    """About how many tokens it takes; see `update_cost`."""
    bundle: int = 0
    """Number of the parallel lists in its line that it belongs to: they are shown whole or not at all. 0: to none."""


class Line(msgspec.Struct, array_like=True, gc=False):
    """One source and what is kept of it."""

    handle: str
    key: str
    """Equal for the same question asked again; unique for what was said."""
    seq: int
    """The source's place in the log; the newest one, when the same source was asked again."""
    kind: Kind
    facts: list[Fact]
    names: list[str] = []
    """The arguments in the handle: what the facts belong to."""
    asked: list[str] = []
    """Names of all arguments of a call, nested ones too."""
    last: int = -1
    """Where one of the names was said last."""
    cost: float = 6.0
    """About how many tokens the handle takes."""
    given: int = 0
    """The last group of arguments: those behind it, and group 0, are of the result."""
    lists: list[tuple[int, str]] = []
    """What rows are of, `(first group, name)`, in order: passengers are not the owner."""
    counts: dict[str, int] = {}
    """By key, how many values a list of the source has: of some of them a reader should see that there are more."""

    def find_list_name(self, group: int) -> str:
        """The name of the list that a group stands in; empty where it has none."""
        lists = self.lists
        if not group or not lists or group < lists[0][0]:
            return ""
        return lists[bisect_right(lists, group, key=itemgetter(0)) - 1][1]


def update_cost(fact: Fact) -> None:
    """Work out what a fact costs to tell: once, for it is asked at every step."""
    key = estimate_tokens(fact.key) if fact.key and not fact.group else 0.0
    fact.cost = round(1.5 + estimate_tokens(fact.value) + key, 1)


_SENTENCE_END = re.compile(r"[.!?؟।…。！？]+[\"')\]”’»]*")
_CLOSED = "。！？"
"""Ends of sentences that no white space has to follow."""
_ITEM = re.compile(r"(?:^|\s)[A-Z]?\d\d?\.\Z")
"""Ends in the number of an item of a list, which is no sentence."""
_BULLET = re.compile(r"(?:[-*#>•–]+|\d{1,3}[.)])(?=\s)")
_BULLETS = frozenset("-*#>•–0123456789")
_NUMBERS = re.compile(r"\d+")
LONGEST, SHORTEST = 240, 60
"""Characters from which a sentence is taken apart, and of the shortest part."""
_JOINTS = (
    re.compile(r"[;；:：][ ]|[ ][-–—][ ]|，"),
    re.compile(r",[ ](?=(?:and|but|so|because|which|then|und|aber|weil|et|mais|y|pero|e|mas)\b)", re.IGNORECASE),
    re.compile(r"(?<=[^\W\d_]{4})[ ](?=(?:and|but|so|because|oh|okay|then|anyway)\b)"),
    re.compile(r",[ ]"),
    re.compile(r"(?<=[^\W\d_]{4})[ ]|(?<=\d)[ ]"),
    re.compile(r"[ ]"),
)
"""Where a long sentence is taken apart, the best places first. After a short word hardly anything ends: "it's five now in the"."""
_RULE = re.compile(r"[ |:+=-]*[-=]{2}[ |:+=-]*")
"""The line below the heading of a table."""
_LABEL = re.compile(r"\W*(?:[A-Za-z]?\d{1,3})?\W*")
_LIKE = 4
"""Sentences of one form that are told at full worth."""


def split_text(text: str) -> list[str]:
    """The sentences and the items of `text`, none longer than `LONGEST` characters."""
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
    """A sentence without the marks of lists and of emphasis, in pieces of at most `LONGEST` characters."""
    text = _strip_emphasis(raw)
    if text[:1] in _BULLETS and (bullet := _BULLET.match(text)):
        text = text[bullet.end() :].strip()
    found += _split_long(text)


def _split_long(text: str) -> Iterator[str]:
    """Yield a text whole, or in parts of at most `LONGEST` characters that end where a clause does, the best places first."""
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
    """The header and the rows of a table (Markdown, CSV, TSV); None for any other text."""
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
    """Whether the first line of what looks like a table names columns: in logs and code, too, lines have equal commas."""
    names = [cell.strip("\"' ") for cell in cells]
    return len(names) >= least and not any(
        not name or len(name) > MAX_KEY or name[0].isdigit() or "/" in name or ": " in name or name[-1] in ".;{"
        for name in names
    )


def rate_rarity(sentences: list[str]) -> list[float]:
    """What each sentence is worth beside the others: those of one form but for their numbers, as a log has them, say little.

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
    """Return the names of columns in a line; nothing if it has one column, or prose in it."""
    cells = [cell.strip() for cell in _strip_emphasis(line).strip("| ").split("|")]
    heading = " | ".join(cells)
    return heading if "|" in line and max(map(len, cells)) <= MAX_KEY and len(heading) <= MAX_VALUE else ""


def is_bare_label(sentence: str) -> bool:
    """Return True for a piece that is nothing but a number or a label: `[ 17%]` or `D11.`, say."""
    return _LABEL.fullmatch(sentence) is not None


LEAST = 4
"""Lines of source from which a text is a listing."""
MOST = 0.5
"""Part of the lines of a listing that are source or matches, at least."""
NAMES = 24
"""Definitions, and files with matches, that are told of one listing."""
READ = 2_000
"""Lines that are looked at."""
_MATCH: Final = re.compile(r"^([^\s:()'\"]*[/.\\][^\s:()'\"]*):(\d+)[:-]")
"""A line of what a search in files answers: path, number, source."""
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
    """What a listing is told by."""

    places: list[str]
    """Where matches are: `path:line,line`."""
    lines: str
    """Which lines it shows, `1-56`, or how many; empty for matches."""
    names: list[str]
    """What is defined in it."""
    before: str
    """What is said above the first line of source."""


def parse_listing(text: str) -> Listing | None:
    """Return what a view of a source file, or of matches in files, is told by; None for any other text."""
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
    """Return True for a piece of a program, as an edit has it in its arguments: all of its lines are source."""
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
"""Most facts read out of one source: the first ones of a longer one."""
LINES, DEFINES = 1.0, 0.8
"""What the lines that a view of a file shows weigh, and a name that is defined there."""


_PAIR = re.compile(r"([^\W\d][\w ./()#-]{0,39}?)(?::\s+|\s=\s+|：\s*)(?=\S)")


def keep_ends(text: str) -> str:
    """What is read of a text: all of it, or of a long one the head and the tail."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT * 3 // 5] + "\n" + text[-MAX_TEXT * 2 // 5 :]


def read_text_facts(text: str, *, said: bool) -> Iterator[Fact]:
    """What a text says: rows where it is a table, pairs where a line is `key: value`, else its sentences."""
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
            # A key that comes again begins another record: its values do not belong to those before.
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
    """Give a listing's places, lines and definitions: none of its source."""
    if listing.lines:
        yield Fact("lines", listing.lines, 0, LINES)
    for key, values in (("", listing.places), ("defines", listing.names)):
        yield from (Fact(key, value[:MAX_VALUE], 0, DEFINES) for value in values)


def _is_pair(pair: re.Match[str], sentence: str) -> bool:
    """Whether what looks like `key: value` is it: no sentence, no address, no assignment in a program."""
    if len(sentence) - pair.end() > 80 or pair[1].count(" ") > 3 or "://" in sentence[:16]:
        return False
    return "=" not in pair[0] or "(" not in sentence


def _iter_row_facts(names: list[str], rows: list[list[str]]) -> Iterator[Fact]:
    for number, row in enumerate(rows, 1):
        for name, value in zip(names, row, strict=False):
            if value:
                yield Fact(name, value, number, weigh_value(value), prose=" " in value)


def deduplicate_facts(facts: Iterable[Fact]) -> list[Fact]:
    """Return each fact once a group, with its cost."""
    seen: set[tuple[str, str, int]] = set()
    kept = []
    for fact in islice(facts, MAX_LEAVES):
        identity = (fact.key, fact.value, fact.group)
        if fact.bundle or identity not in seen:
            seen.add(identity)
            update_cost(fact)
            kept.append(fact)
    return kept
