"""Facts of a text: rows where it is a table, pairs where a line is `key: value`, else sentences."""

# ruff: noqa: RUF001 (punctuation of other scripts is what some patterns are about)

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import count as counting
from itertools import islice, repeat

from holdfast.context.digest.lines import Fact, priced
from holdfast.context.digest.listings import Listing, listing_of
from holdfast.context.digest.texts import is_bare_label, rarity_of, sentences_of, split_headings, table_of
from holdfast.context.values import COLONS, MAX_TEXT, MAX_VALUE, prose_weight, tells_error, weight_of

MAX_LEAVES = 400
"""Most facts read out of one source: the first ones of a longer one."""
LINES, DEFINES = 1.0, 0.8
"""What the lines that a view of a file shows weigh, and a name that is defined there."""


_PAIR = re.compile(r"([^\W\d][\w ./()#-]{0,39}?)(?::\s+|\s=\s+|：\s*)(?=\S)")


def ends_of(text: str) -> str:
    """What is read of a text: all of it, or of a long one the head and the tail."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT * 3 // 5] + "\n" + text[-MAX_TEXT * 2 // 5 :]


def text_facts(text: str, *, said: bool) -> Iterator[Fact]:
    """What a text says: rows where it is a table, pairs where a line is `key: value`, else its sentences."""
    text = ends_of(text)
    table = None if said else table_of(text)
    if table is not None:
        yield from _rows(*table)
        return
    listing = None if said else listing_of(text)
    if listing is not None:
        yield from _listed(listing)
        text = listing.before
    counter = counting(1)
    block, keys = 0, set[str]()
    text, headings = split_headings(text)
    sentences = sentences_of(text)
    for sentence, rare in zip(sentences, repeat(1.0) if said else rarity_of(sentences), strict=False):
        if not said and len(sentences) > 1 and is_bare_label(sentence):
            continue
        pair = _PAIR.match(sentence) if ": " in sentence or " = " in sentence or "：" in sentence else None
        error = 1.5 if not said and tells_error(sentence) and not sentence.endswith(COLONS) else 0.0
        if sentence in headings:
            keys.clear()
            weight = prose_weight(sentence) * rare + error
            yield Fact(headings[sentence], sentence.strip("| "), next(counter), weight, prose=True, firm=error > 0)
        elif pair and _is_pair(pair, sentence):
            key, value = pair[1].strip(), sentence[pair.end() :].strip()
            # A key that comes again begins another record: its values do not belong to those before.
            if key in keys or (said and not keys):
                block = next(counter)
                keys.clear()
            keys.add(key)
            yield Fact(key, value, block, prose_weight(value) * rare + error, prose=True, firm=error > 0)
        else:
            if said:
                keys.clear()
            weight = prose_weight(sentence) * rare + error
            yield Fact("", sentence, next(counter), weight, prose=True, firm=error > 0)


def _listed(listing: Listing) -> Iterator[Fact]:
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


def _rows(names: list[str], rows: list[list[str]]) -> Iterator[Fact]:
    for number, row in enumerate(rows, 1):
        for name, value in zip(names, row, strict=False):
            if value:
                yield Fact(name, value, number, weight_of(value), prose=" " in value)


def numbered(facts: Iterable[Fact]) -> list[Fact]:
    """Return each fact once a group, with its cost."""
    seen: set[tuple[str, str, int]] = set()
    kept = []
    for fact in islice(facts, MAX_LEAVES):
        identity = (fact.key, fact.value, fact.group)
        if fact.bundle or identity not in seen:
            seen.add(identity)
            priced(fact)
            kept.append(fact)
    return kept
