"""What an index keeps, as rows: numbers for channels and places, words for the engine, terms of a document in one text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, get_args

import msgspec

from holdfast.recall.base import Candidate, Channel, Document, Filters, Progress, Space
from holdfast.recall.terms import key_of
from holdfast.stores.logic.rows import ENDLESS, decode_text, encode_array
from holdfast.stores.logic.steps import Row

CHANNELS: Final[tuple[Channel, ...]] = get_args(Channel)
"""A channel's number in the database is its place here."""
PLACES: Final = 1 << 24
"""Places of a source's channel."""
_PLACE: Final = PLACES - 1
SOURCES: Final = 1 << 38
"""Sources of a database: ids of documents have 63 bits."""
GONE: Final = "gone"
"""The kind of a space that is being taken away."""
_LETTERS: Final = "tx"
"""What the words of each channel begin with: whoever reads one channel goes through nothing of the other."""
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def make_document_id(source: int, channel: int, place: int) -> int:
    """The id of a document: neighbours have neighbouring ids, and later sources higher ones."""
    return source << 25 | channel << 24 | place


# -- terms and words -----------------------------------------------------------


def make_prefix(space: int, channel: int) -> str:
    """What the words of a space and channel begin with."""
    digits = ""
    while space:
        space, digit = divmod(space, 36)
        digits = _DIGITS[digit] + digits
    return f"{_LETTERS[channel]}{digits}_"


def pack_terms(terms: Mapping[str, int], detail: str = "") -> str:
    """The keys of terms in one text; after a bar those that occur more than once, with how often; after another one the details."""
    keys = {key_of(term): count for term, count in terms.items()}
    often = " ".join(f"{key}={count}" for key, count in keys.items() if count > 1)
    if detail:
        return f"{' '.join(keys)}|{often}|{detail}"
    return f"{' '.join(keys)}|{often}" if often else " ".join(keys)


def unpack_keys(terms: str) -> list[str]:
    """The keys in a text that `pack_terms` made."""
    return terms.partition("|")[0].split()


def make_words(prefix: str, keys: Iterable[str]) -> str:
    """What an engine gets to index."""
    return " ".join([prefix + key for key in keys])


TermCounter = Callable[[str], dict[str, int]]
"""Says how often terms stand in a text that `pack_terms` made."""
SOUGHT: Final = 16
"""Terms up to which each is looked for in a long text; more, or those of a short one, are compared with its words."""
LONG: Final = 10
"""Characters of a long text for each of the terms."""


def make_counter(terms: Iterable[str]) -> TermCounter:
    """What says how often each of `terms` stands there; those that do."""
    names = {key_of(term): term for term in terms}
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
                if (at := often.find(f" {key_of(term)}=")) >= 0:
                    start = often.index("=", at) + 1
                    found[term] = int(often[start : often.index(" ", start)])
        return found

    return count


def make_mark(digest: bytes) -> int:
    """What a digest begins with, as a number."""
    return int.from_bytes(digest[:8], "big", signed=True)


# -- rows ----------------------------------------------------------------------


class StoredDocument(msgspec.Struct, frozen=True, gc=False):
    """A document that is there; the columns of `index_documents_at`, and of `index_documents_first`."""

    id: int
    seq: int
    channel: int
    digest: bytes
    length: int
    terms: str
    model: int | None


def decode_document(row: Row) -> StoredDocument:
    """See `StoredDocument`."""
    id_, seq, channel, digest, length, terms, model = row
    return StoredDocument(id_, seq, channel, bytes(digest), length, decode_text(terms), model)


def encode_document(id_: int, space: int, source: int, new: Document, model: int | None) -> Row:
    """The columns of a document."""
    return (
        *(id_, space, CHANNELS.index(new.channel), source, new.seq, new.at, new.length, new.traits, model),
        *(new.role, new.agent, new.name, new.digest, pack_terms(new.terms, new.detail)),
    )


def decode_candidate(row: Row, count: TermCounter) -> Candidate:
    """A candidate from a row of `index_candidates`."""
    id_, seq, session, identity, role, agent, name, at, length, traits, terms = row
    if type(terms) is not str:  # nor are the others, in that dialect
        session, identity, role, terms = session.decode(), identity.decode(), role.decode(), terms.decode()
        agent, name = agent and agent.decode(), name and name.decode()
    counts = count(terms)
    bar = terms.find("|", terms.find("|") + 1)
    detail = terms[bar + 1 :] if bar > 0 else ""
    return Candidate(
        id_ >> 25, id_ & _PLACE, seq, session, identity, role, agent, name, at, length, counts, traits, detail
    )


def decode_progress(row: Sequence[object]) -> Progress:
    """How far a source is: identity, version, next_seq, talk, tool, epoch, complete."""
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
    """A source from a row of `index_sources_after`."""
    kind, name, id_, *progress = row
    return Space(decode_text(kind), decode_text(name)), decode_text(id_), decode_progress(progress)  # type: ignore[arg-type]


# -- filters -------------------------------------------------------------------

NO_FILTER: Final[Row] = (None, None, None, None, -ENDLESS, ENDLESS)
"""`encode_filters` of one that lets all pass."""


def encode_filters(filters: Filters, sources: Sequence[int] | None, others: Sequence[int] | None) -> Row:
    """The parameters of a filter: JSON of sources that pass and do not, of agents and roles, or NULL; from and before when."""
    return (
        None if sources is None else encode_array(sources),
        None if others is None else encode_array(others),
        encode_texts(filters.agents) if filters.agents else None,
        encode_texts(filters.roles) if filters.roles else None,
        -ENDLESS if filters.since is None else filters.since,
        ENDLESS if filters.until is None else filters.until,
    )


def encode_texts(texts: Iterable[str]) -> str:
    """Texts as one parameter, a JSON array of their bytes in hexadecimal: there is no text that it could not hold."""
    return encode_array(text.encode("utf-8", "surrogatepass").hex() for text in texts)
