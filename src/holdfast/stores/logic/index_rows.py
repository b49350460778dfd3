"""Convert documents of an index to rows and back.

Channels and places become numbers, terms become words for the full-text engine, and all terms of a document become one text.
The place of a document is its position among the documents of its source and channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast, get_args

import msgspec

from holdfast.recall.base import PLACES, Candidate, Channel, Document, Filters, Progress, Space, SpaceKind
from holdfast.recall.terms import to_key
from holdfast.stores.logic.rows import ENDLESS, decode_text, encode_array
from holdfast.stores.logic.steps import Row

CHANNELS: Final[tuple[Channel, ...]] = get_args(Channel)
"""The channels. A channel is stored as its index here."""
_PLACE: Final = PLACES - 1
SOURCES: Final = 1 << 38
"""Maximum number of sources in a database. Ids of documents have 63 bits and include the source's number."""
_LETTERS: Final = "tx"
"""First letter of the words of each channel, so that a search in one channel reads no words of the other."""
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def make_document_id(source: int, channel: int, place: int) -> int:
    """Return the id of a document. Neighbouring places have consecutive ids, and sources with higher numbers have higher ids."""
    return source << 25 | channel << 24 | place


# -- terms and words -----------------------------------------------------------


def make_prefix(space: int, channel: int) -> str:
    """Return the text that all indexed words of a space and channel begin with."""
    digits = ""
    while space:
        space, digit = divmod(space, 36)
        digits = _DIGITS[digit] + digits
    return f"{_LETTERS[channel]}{digits}_"


def pack_terms(terms: Mapping[str, int], detail: str = "") -> str:
    """Encode the terms of a document and their counts as a text of up to three parts, with bars between the parts.

    The first part lists all keys. The second part has `key=count` for keys that occur more than once. The third part contains
    `detail`.
    """
    keys = {to_key(term): count for term, count in terms.items()}
    often = " ".join(f"{key}={count}" for key, count in keys.items() if count > 1)
    if detail:
        return f"{' '.join(keys)}|{often}|{detail}"
    return f"{' '.join(keys)}|{often}" if often else " ".join(keys)


def unpack_keys(terms: str) -> list[str]:
    """Return the keys in a text that `pack_terms` made."""
    return terms.partition("|")[0].split()


def make_words(prefix: str, keys: Iterable[str]) -> str:
    """Return the text that the full-text engine indexes: the prefixed keys."""
    return " ".join([prefix + key for key in keys])


TermCounter = Callable[[str], dict[str, int]]
"""Function that counts terms in a text that `pack_terms` made."""
SOUGHT: Final = 16
"""In a long text, up to this many terms are searched for one by one. More terms are looked up in the set of the text's words."""
LONG: Final = 10
"""A text is long if it has at least this many characters per term."""


def make_counter(terms: Iterable[str]) -> TermCounter:
    """Return a function that counts how often each of `terms` occurs in a packed text. Its result leaves out terms that do not occur."""
    names = {to_key(term): term for term in terms}
    if not names:
        return lambda _: {}
    common, named = frozenset(names).intersection, names.__getitem__
    sought = [(f" {key} ", term) for key, term in names.items()]
    long = LONG * len(sought) if len(sought) <= SOUGHT else math.inf

    def count(text: str) -> dict[str, int]:
        plain, _, rest = text.partition("|")
        if len(plain) < long:
            found = dict.fromkeys(map(named, common(plain.split(" "))), 1)
        else:
            plain = f" {plain} "
            found = {term: 1 for word, term in sought if word in plain}
        if rest and found and rest[0] != "|":
            often = f" {rest.partition('|')[0]} "
            for term in found:
                if (at := often.find(f" {to_key(term)}=")) >= 0:
                    start = often.index("=", at) + 1
                    found[term] = int(often[start : often.index(" ", start)])
        return found

    return count


def make_mark(digest: bytes) -> int:
    """Return the first 8 bytes of a digest as a number."""
    return int.from_bytes(digest[:8], "big", signed=True)


# -- rows ----------------------------------------------------------------------


class StoredDocument(msgspec.Struct, frozen=True, gc=False):
    """A document as stored: the columns of the statements `index_documents_at` and `index_documents_first`."""

    id: int
    seq: int
    channel: int
    digest: bytes
    length: int
    terms: str
    model: int | None


def decode_document(row: Row) -> StoredDocument:
    """Decode a row to the stored document."""
    id_, seq, channel, digest, length, terms, model = row
    return StoredDocument(id_, seq, channel, bytes(digest), length, decode_text(terms), model)


def encode_document(id_: int, space: int, source: int, new: Document, model: int | None) -> Row:
    """Return a document as a row."""
    return (
        *(id_, space, CHANNELS.index(new.channel), source, new.seq, new.at, new.length, new.traits, model),
        *(new.role, new.agent, new.name, new.digest, pack_terms(new.terms, new.detail)),
    )


def decode_candidate(row: Row, count: TermCounter) -> Candidate:
    """Decode a row of `index_candidates`; `count` counts the terms of the lookup."""
    id_, seq, session, identity, role, agent, name, at, length, traits, terms = row
    if type(terms) is not str:  # a dialect that returns text as bytes, in all columns
        session, identity, role, terms = session.decode(), identity.decode(), role.decode(), terms.decode()
        agent, name = agent and agent.decode(), name and name.decode()
    counts = count(terms)
    bar = terms.find("|", terms.find("|") + 1)
    detail = terms[bar + 1 :] if bar > 0 else ""
    return Candidate(
        id_ >> 25, id_ & _PLACE, seq, session, identity, role, agent, name, at, length, counts, traits, detail
    )


encode_progress = msgspec.json.Encoder().encode
decode_progress = msgspec.json.Decoder(Progress).decode


def decode_source(row: Row) -> tuple[Space, str, Progress]:
    """Decode a row of `index_sources_after` to space, id and progress."""
    kind, name, id_, progress = row
    space = Space(cast(SpaceKind, decode_text(kind)), decode_text(name))
    return space, decode_text(id_), decode_progress(progress)


# -- filters -------------------------------------------------------------------

NO_FILTER: Final[Row] = (None, None, None, None, None, None, -ENDLESS, ENDLESS)
"""The result of `encode_filters` for a filter that accepts all documents."""


def encode_filters(filters: Filters, sources: Sequence[int] | None, others: Sequence[int] | None) -> Row:
    """Return a filter as parameters of statements.

    Args:
        filters: the filter.
        sources: numbers of the sources that the filter allows; None: the filter allows all sources.
        others: numbers of the sources that the filter excludes; None: the filter excludes no source.

    Returns:
        The allowed sources, the excluded sources, the agents and the roles, each as a JSON array, or None for no condition;
        the first name and the end of the names, or None; then the bounds `since` and `until`.
    """
    return (
        None if sources is None else encode_array(sources),
        None if others is None else encode_array(others),
        encode_texts(filters.agents) if filters.agents else None,
        encode_texts(filters.roles) if filters.roles else None,
        *(filters.names or (None, None)),
        -ENDLESS if filters.since is None else filters.since,
        ENDLESS if filters.until is None else filters.until,
    )


def encode_texts(texts: Iterable[str]) -> str:
    """Return texts as one parameter, a JSON array. Each text is encoded as hexadecimal bytes, so any text is possible."""
    return encode_array(text.encode("utf-8", "surrogatepass").hex() for text in texts)
