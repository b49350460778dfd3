"""Convert documents of an index to rows and back.

Channels and places become numbers, terms become words for the full-text engine, and all terms of a document become one text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, get_args

import msgspec

from holdfast.recall.base import Candidate, Channel, Document, Filters, Progress, Space
from holdfast.recall.terms import to_key
from holdfast.stores.logic.rows import ENDLESS, decode_text, encode_array
from holdfast.stores.logic.steps import Row

CHANNELS: Final[tuple[Channel, ...]] = get_args(Channel)
"""The channels. The position of a channel here is its number in the database."""
PLACES: Final = 1 << 24
"""Maximum number of places in a channel of a source."""
_PLACE: Final = PLACES - 1
SOURCES: Final = 1 << 38
"""Maximum number of sources in a database, since the ids of documents have 63 bits."""
GONE: Final = "gone"
"""The kind of a space that is being deleted."""
_LETTERS: Final = "tx"
"""First letter of the words of each channel, so that a search of one channel reads nothing of the other."""
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def make_document_id(source: int, channel: int, place: int) -> int:
    """Return the id of a document. Neighbouring places have neighbouring ids, and later sources have higher ones."""
    return source << 25 | channel << 24 | place


# -- terms and words -----------------------------------------------------------


def make_prefix(space: int, channel: int) -> str:
    """Return the prefix of all words of a space and channel."""
    digits = ""
    while space:
        space, digit = divmod(space, 36)
        digits = _DIGITS[digit] + digits
    return f"{_LETTERS[channel]}{digits}_"


def pack_terms(terms: Mapping[str, int], detail: str = "") -> str:
    """Encode terms as one text: `keys|key=count for keys that occur more than once|details`."""
    keys = {to_key(term): count for term, count in terms.items()}
    often = " ".join(f"{key}={count}" for key, count in keys.items() if count > 1)
    if detail:
        return f"{' '.join(keys)}|{often}|{detail}"
    return f"{' '.join(keys)}|{often}" if often else " ".join(keys)


def unpack_keys(terms: str) -> list[str]:
    """Return the keys in a text that `pack_terms` made."""
    return terms.partition("|")[0].split()


def make_words(prefix: str, keys: Iterable[str]) -> str:
    """Return the text that the full-text engine indexes."""
    return " ".join([prefix + key for key in keys])


TermCounter = Callable[[str], dict[str, int]]
"""Counts terms in a text that `pack_terms` made."""
SOUGHT: Final = 16
"""Up to this many terms are searched for in a long text one by one. More terms are compared with the set of its words."""
LONG: Final = 10
"""A text is long if it has at least this many characters per term."""


def make_counter(terms: Iterable[str]) -> TermCounter:
    """Return a function that counts how often each of `terms` occurs in a text. Its result omits terms that do not occur."""
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
    """A stored document: the columns of `index_documents_at`, and of `index_documents_first`."""

    id: int
    seq: int
    channel: int
    digest: bytes
    length: int
    terms: str
    model: int | None


def decode_document(row: Row) -> StoredDocument:
    """Return the stored document in a row."""
    id_, seq, channel, digest, length, terms, model = row
    return StoredDocument(id_, seq, channel, bytes(digest), length, decode_text(terms), model)


def encode_document(id_: int, space: int, source: int, new: Document, model: int | None) -> Row:
    """Return the columns of a document."""
    return (
        *(id_, space, CHANNELS.index(new.channel), source, new.seq, new.at, new.length, new.traits, model),
        *(new.role, new.agent, new.name, new.digest, pack_terms(new.terms, new.detail)),
    )


def decode_candidate(row: Row, count: TermCounter) -> Candidate:
    """Return the candidate in a row of `index_candidates`."""
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


def decode_progress(row: Sequence[object]) -> Progress:
    """Return a source's progress from the columns identity, version, next_seq, talk, tool, epoch and complete."""
    identity, version, next_seq, talk, tool, epoch, complete = row
    return Progress(
        identity=decode_text(identity),  # type: ignore[arg-type]  # columns, as their table has them
        version=version,  # type: ignore[arg-type]
        next_seq=next_seq,  # type: ignore[arg-type]
        talk=talk,  # type: ignore[arg-type]
        tool=tool,  # type: ignore[arg-type]
        epoch=epoch,  # type: ignore[arg-type]
        complete=bool(complete),
    )


def decode_source(row: Row) -> tuple[Space, str, Progress]:
    """Return the source in a row of `index_sources_after`."""
    kind, name, id_, *progress = row
    return Space(decode_text(kind), decode_text(name)), decode_text(id_), decode_progress(progress)  # type: ignore[arg-type]


# -- filters -------------------------------------------------------------------

NO_FILTER: Final[Row] = (None, None, None, None, -ENDLESS, ENDLESS)
"""The result of `encode_filters` for a filter that lets everything pass."""


def encode_filters(filters: Filters, sources: Sequence[int] | None, others: Sequence[int] | None) -> Row:
    """Return the parameters of a filter.

    They are JSON arrays, or NULL, of the sources that pass, the sources that do not, agents and roles; then the bounds since and until.
    """
    return (
        None if sources is None else encode_array(sources),
        None if others is None else encode_array(others),
        encode_texts(filters.agents) if filters.agents else None,
        encode_texts(filters.roles) if filters.roles else None,
        -ENDLESS if filters.since is None else filters.since,
        ENDLESS if filters.until is None else filters.until,
    )


def encode_texts(texts: Iterable[str]) -> str:
    """Return texts as one parameter: a JSON array of their bytes in hexadecimal, which can hold any text."""
    return encode_array(text.encode("utf-8", "surrogatepass").hex() for text in texts)
