"""Search: how long a lookup in an index takes, by how much one user has said and how much others have; and how fast it is fed.

On SQLite, and on a PostgreSQL server where one is reached. Turns are short, or messages of some 4,000 characters, which have chunks.

What is said is made up, with the frequencies of natural speech: a few words stand in very many turns, most in a few. The
questions are made of the words of some turn, so that rare and common words meet in them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from benchmarks.databases import open_database
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table, format_count, format_duration, format_ratio
from benchmarks.timing import Block, alternate, clock, repeat, repeat_async, report
from holdfast.recall.base import Batch, Document, Filters, Lookup, Progress, Source, Space
from holdfast.recall.details import analyse
from holdfast.recall.questions import question_of
from holdfast.recall.ranking import Ranking
from holdfast.recall.terms import terms_of
from holdfast.stores.indexes import open_index

SIZES: Final = (6_000, 100_000, 1_000_000)
"""Turns of one user."""
OTHERS: Final = 10_000
"""Other users."""
TURNS_OF_OTHERS: Final = 100
"""Turns that each of them has."""
TURNS_PER_SESSION: Final = 100
"""Turns of a session, which are one write."""
LONG: Final = 20_000
"""Long messages of one user."""
LONG_WORDS: Final = 560
"""Words of one, some 4,000 characters."""
ON_SERVER: Final = 100_000
"""Turns of the user on a server."""
WORDS: Final = 50_000
ANN: Final = Space("talk", "ann")
_COLUMNS = [
    Column("what", ""),
    Column("turns", "turns of the user", format_count),
    Column("others", "of others", format_count),
    Column("search", "a search, ranked, p50", format_duration),
    Column("search_p99", "p99", format_duration),
    Column("analysis", "its question, p50", format_duration),
    Column("question", "its lookup, p50", format_duration),
    Column("common", "of common words", format_duration),
    Column("rare", "of a rare word", format_duration),
    Column("day", "within a day", format_duration),
    Column("peer", "FTS5, a question, p50", format_duration),
    Column("peer_p99", "p99", format_duration),
    Column("ratio", "beside it", format_ratio),
]
_WRITE_COLUMNS = [
    Column("what", ""),
    Column("turns", "turns", format_count),
    Column("analysis", "analysing one", format_duration),
    Column("rate", "turns/s, analysed before", format_count),
    Column("bytes", "bytes a turn", format_count),
    Column("peer_rate", "FTS5, turns/s", format_count),
    Column("peer_bytes", "bytes a turn", format_count),
]


async def measure(run: Run) -> list[Table]:
    """One user by how much there is of theirs, and one among many."""
    sizes = SIZES[:1] if run.quick else SIZES
    less = 20 if run.quick else 1
    cases = [_Case("SQLite", size) for size in sizes]
    cases.append(_Case("SQLite", SIZES[0], OTHERS // (100 if run.quick else 1)))
    cases += [] if run.quick else [_Case("SQLite", ON_SERVER, OTHERS)]
    cases.append(_Case("SQLite, long messages", LONG // less, long=True))
    rows: list[dict[str, Figure]] = []
    written: list[dict[str, Figure]] = []

    async def one(case: _Case, url: str) -> None:
        report(f"search: {case.what}, {case.size:,} turns, {case.others:,} other users")
        place = _IndexPair(run.folder, url, case)
        about: dict[str, Figure] = {"what": case.what, "turns": case.size, "others": case.others * TURNS_OF_OTHERS}
        written.append(about | await place.fill())
        rows.append(about | await place.time_lookups(run))
        await place.close()
        delete_files(run.folder, "search*.db*")

    for case in cases:
        await one(case, f"sqlite:///{run.folder / DATABASE}")
    async with open_database("PostgreSQL", run.folder) as url:
        if url is not None:
            await one(_Case("PostgreSQL", ON_SERVER // less), url)
    notes = (
        f"A turn has 6 to 18 words that count, of {WORDS:,}; a question three to six of one turn's, common ones among them.",
        "The words are of no language, so a question's are stemmed in all of them the first time that one comes.",
        "A long message has some 4,000 characters, 560 words, and chunks.",
        "Beside it: a plain FTS5 table, bm25 and the ten best, the user as a column that is compared.",
    )
    return [
        Table("search", "A lookup in the index", _COLUMNS, rows, notes),
        Table("search_fed", "Feeding it, a hundred turns a write", _WRITE_COLUMNS, written),
    ]


# -- what is said --------------------------------------------------------------


class TextGenerator:
    """Turns and questions, the same in every run.

    Args:
        seed: another one says other things.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # nobody's secret
        found = {tuple(terms_of(word).counts): word for word in map(_make_word, range(WORDS))}
        self.terms = {word: terms[0] for terms, word in found.items() if len(terms) == 1}
        """What the analysis makes of each word."""
        self._words = [*self.terms]
        self._weights = list(accumulate(1 / (at + 10) for at in range(len(self._words))))

    def make_turn(self) -> list[str]:
        """The words of one."""
        return self.random.choices(self._words, cum_weights=self._weights, k=self.random.randint(6, 18))

    def make_message(self) -> list[str]:
        """The words of a long one, with the ends of its sentences."""
        words = self.random.choices(self._words, cum_weights=self._weights, k=LONG_WORDS)
        return [f"{word}." if at % 14 == 13 else word for at, word in enumerate(words)]

    def make_question(self, turn: Sequence[str]) -> list[str]:
        """Some words of a turn, and one that has nothing to do with it."""
        said = sorted({word.rstrip(".") for word in turn})
        asked = self.random.sample(said, min(len(said), self.random.randint(2, 5)))
        return [*dict.fromkeys([*asked, self.make_turn()[0]])]

    def pick_common_words(self) -> list[str]:
        """Words that stand in very many turns."""
        return self.random.sample(self._words[:60], 3)

    def pick_rare_word(self) -> list[str]:
        """One that stands in few."""
        return [self.random.choice(self._words[2_000:10_000])]


def _make_word(at: int) -> str:
    """A word that no other number has."""
    parts, word = ("ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu"), ""
    for digit in str(at):
        word += parts[int(digit)]
    return word


def _make_documents(turns: Sequence[Sequence[str]], first: int, known: Mapping[str, str]) -> list[Document]:
    found = []
    for seq, words in enumerate(turns):
        digest = blake2b(" ".join(words).encode(), digest_size=16).digest()
        role = "assistant" if seq % 2 else "user"
        found.append(
            Document(
                seq=seq,
                place=seq,
                role=role,
                at=(first + seq) * 60_000,
                digest=digest,
                length=len(words),
                terms=Counter(known[word] for word in words),
            )
        )
    return found


def _make_long_documents(turns: Sequence[Sequence[str]], first: int) -> list[Document]:
    """The documents of long messages, analysed as they are when they are indexed."""
    found = []
    for seq, words in enumerate(turns):
        text, at = " ".join(words), (first + seq) * 60_000
        terms, detail = analyse(text, at)
        found.append(
            Document(
                seq=seq,
                place=seq,
                role="assistant",
                at=at,
                digest=blake2b(text.encode(), digest_size=16).digest(),
                length=terms.length,
                terms=terms.counts,
                traits=terms.traits,
                detail=detail,
            )
        )
    return found


# -- one index, and its peer ---------------------------------------------------


DATABASE: Final = "search.db"


class _Case(NamedTuple):
    """What is measured."""

    what: str
    size: int
    """Turns of the user."""
    others: int = 0
    """Other users."""
    long: bool = False
    """Whether the turns are long messages."""


class _IndexPair:
    """An index with one user's turns and those of others, and the peer with the same."""

    def __init__(self, folder: Path, url: str, case: _Case) -> None:
        self._url = url
        self._file = folder / DATABASE
        self._peers = folder / "search-peer.db"
        self._size, self._others, self._long = case.size, case.others, case.long
        self._speech = TextGenerator(case.size)
        self._kept: list[list[str]] = []
        """Some turns of the user, to ask about."""

    async def fill(self) -> dict[str, Figure]:
        """Feed both, others' turns between the user's; how fast that went."""
        self._index = await open_index(self._url, tenant="bench")
        self._peer = _Peer(self._peers)
        spent, total, waiting = 0.0, 0, list[tuple[Space, str, list[list[str]], int]]()
        for space, id_, first in self._plan_sessions():
            turns = [
                self._speech.make_message() if self._long else self._speech.make_turn()
                for _ in range(TURNS_PER_SESSION)
            ]
            if space == ANN:
                self._kept += self._speech.random.sample(turns, 2)
            waiting.append((space, id_, turns, first))
            total += TURNS_PER_SESSION
            if len(waiting) == 8:
                spent += await self._write(waiting)
                waiting.clear()
        spent += await self._write(waiting)
        texts = [" ".join(words) for words in self._kept[:400]]
        analysed = repeat(lambda: [analyse(text, 0) for text in texts], most=3, seconds=1.0)
        return {
            "turns": total,
            "analysis": min(await analysed()) / len(texts),
            "rate": total / spent,
            "bytes": _measure_file(self._file) / total if self._file.exists() else None,
            "peer_rate": total / self._peer.spent,
            "peer_bytes": _measure_file(self._peers) / total,
        }

    def _plan_sessions(self) -> Iterator[tuple[Space, str, int]]:
        """User, session, and which turn of the user is its first."""
        mine = self._size // TURNS_PER_SESSION
        for at in range(max(mine, self._others)):
            if at < mine:
                yield ANN, f"s{at}", at * TURNS_PER_SESSION
            if at < self._others:
                yield Space("talk", f"u{at}"), "s0", 0

    async def _write(self, sessions: Sequence[tuple[Space, str, list[list[str]], int]]) -> float:
        known = self._speech.terms
        batches = [
            (
                space,
                _make_batch(
                    id_, _make_long_documents(turns, first) if self._long else _make_documents(turns, first, known)
                ),
            )
            for space, id_, turns, first in sessions
        ]
        started = clock()
        await asyncio.gather(*(self._index.write(space, batch) for space, batch in batches))
        spent = clock() - started
        self._peer.write([(space.name, " ".join(turn)) for space, _, turns, _ in sessions for turn in turns])
        return spent

    async def time_lookups(self, run: Run) -> dict[str, Figure]:
        """Each kind of question, in turn with the peer."""
        speech, last = self._speech, self._size * 60_000
        turns = self._kept

        def asked() -> list[str]:
            return speech.make_question(speech.random.choice(turns))

        def terms(words: Sequence[str], filters: Filters) -> Lookup:
            return Lookup(space=ANN, terms=tuple(speech.terms[word] for word in words), filters=filters)

        async def search() -> None:
            await self._search(" ".join(asked()), now=last)

        day, whole_space = 1440 * 60_000, Filters()
        since = last // 2
        filters = Filters(since=since, until=since + day)
        blocks: dict[str, Block] = {
            "search": repeat_async(search, most=200, seconds=0.5),
            "analysis": repeat(lambda: question_of(" ".join(asked()), now=last), most=200, seconds=0.5),
            "question": self._make_lookup_block(lambda: terms(asked(), whole_space)),
            "common": self._make_lookup_block(lambda: terms(speech.pick_common_words(), whole_space)),
            "rare": self._make_lookup_block(lambda: terms(speech.pick_rare_word(), whole_space)),
            "day": self._make_lookup_block(lambda: terms(asked(), filters)),
            "peer": self._peer.make_block(asked),
        }
        found = await alternate(blocks, rounds=run.rounds, limit=run.limit)
        figures: dict[str, Figure] = {name: samples.median for name, samples in found.items()}
        figures["search_p99"] = found["search"].quantile(0.99)
        figures["peer_p99"] = found["peer"].quantile(0.99)
        figures["ratio"] = found["peer"].median / found["search"].median
        return figures

    async def _search(self, text: str, *, now: int) -> None:
        """What a search does with the index: analysis, lookup, ranking, the ten best."""
        question = question_of(text, now=now)
        asked = Lookup(space=ANN, terms=question.terms)
        ranking = Ranking(question, await self._index.lookup(asked))
        if places := ranking.missing(10):
            ranking.fill(await self._index.near(asked, places), places)
        ranking.hits(10)

    def _make_lookup_block(self, make: Callable[[], Lookup]) -> Block:
        async def ask() -> None:
            await self._index.lookup(make())

        return repeat_async(ask, most=200, seconds=0.5)

    async def close(self) -> None:
        """Close both."""
        await self._index.close()
        self._peer.close()


def _measure_file(path: Path) -> int:
    """Bytes of a database, with nothing left in its write-ahead log."""
    raw = apsw.Connection(str(path))
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    raw.close()
    return path.stat().st_size


def _make_batch(id_: str, put: Sequence[Document]) -> Batch:
    progress = Progress(identity="i", version=len(put), next_seq=len(put), talk=len(put))
    return Batch(source=Source(id_, "i"), progress=progress, put=put, expect=None)


class _Peer:
    """The plain way: one FTS5 table for everybody."""

    def __init__(self, path: Path) -> None:
        self._raw = apsw.Connection(str(path))
        self._raw.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
        self._raw.execute("CREATE VIRTUAL TABLE said USING fts5 (user UNINDEXED, text)")
        self.spent = 0.0

    def write(self, rows: Sequence[tuple[str, str]]) -> None:
        """Take turns in, in one transaction."""
        started = clock()
        with self._raw:
            self._raw.executemany("INSERT INTO said VALUES (?, ?)", rows)
        self.spent += clock() - started

    def make_block(self, make: Callable[[], Sequence[str]]) -> Block:
        """Questions."""
        sql = "SELECT rowid, rank FROM said WHERE said MATCH ? AND user = ? ORDER BY rank LIMIT 10"

        async def ask() -> None:
            words = " OR ".join(f'"{word}"' for word in make())
            self._raw.execute(sql, (words, ANN.name)).fetchall()

        return repeat_async(ask, most=200, seconds=0.5)

    def close(self) -> None:
        """See `_Place.close`."""
        self._raw.close()
