"""Search times by the size of one user's history and of other users' histories, and the speed of writing to the index.

Runs on SQLite, and on PostgreSQL if a server is reachable. Messages are short turns, or long texts of about 4,000 characters that are
indexed in chunks. Texts are generated with the word frequencies of natural language: a few words occur in very many turns, most words
in a few. Queries use words of one turn, so they mix rare and common words.
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
from holdfast.recall.questions import parse_question
from holdfast.recall.ranking import Ranking
from holdfast.recall.terms import extract_terms
from holdfast.stores.indexes import open_index

SIZES: Final = (6_000, 100_000, 1_000_000)
"""Turns of the user who searches."""
OTHER_USERS: Final = 10_000
"""Number of other users."""
TURNS_OF_OTHERS: Final = 100
"""Turns of each other user."""
TURNS_PER_SESSION: Final = 100
"""Turns of a session, which are written at once."""
LONG: Final = 20_000
"""Number of long messages."""
LONG_WORDS: Final = 560
"""Words of a long message, about 4,000 characters."""
ON_SERVER: Final = 100_000
"""Turns of the user on a database server."""
WORDS: Final = 50_000
ANN: Final = Space("talk", "ann")
_COLUMNS = [
    Column("what", ""),
    Column("turns", "user's turns", format_count),
    Column("others", "others' turns", format_count),
    Column("search", "search with ranking, p50", format_duration),
    Column("search_p99", "p99", format_duration),
    Column("analysis", "query analysis, p50", format_duration),
    Column("question", "lookup, p50", format_duration),
    Column("common", "lookup, common words", format_duration),
    Column("rare", "lookup, rare word", format_duration),
    Column("day", "lookup within a day", format_duration),
    Column("peer", "FTS5 query, p50", format_duration),
    Column("peer_p99", "p99", format_duration),
    Column("ratio", "FTS5 / search", format_ratio),
]
_WRITE_COLUMNS = [
    Column("what", ""),
    Column("turns", "turns", format_count),
    Column("analysis", "analysis per turn", format_duration),
    Column("rate", "turns/s, without analysis", format_count),
    Column("bytes", "bytes per turn", format_count),
    Column("peer_rate", "FTS5 turns/s", format_count),
    Column("peer_bytes", "FTS5 bytes per turn", format_count),
]


async def measure(run: Run) -> list[Table]:
    """Measure users with histories of different sizes, alone and among other users."""
    sizes = SIZES[:1] if run.quick else SIZES
    divisor = 20 if run.quick else 1
    cases = [_Case("SQLite", size) for size in sizes]
    cases.append(_Case("SQLite", SIZES[0], OTHER_USERS // (100 if run.quick else 1)))
    cases += [] if run.quick else [_Case("SQLite", ON_SERVER, OTHER_USERS)]
    cases.append(_Case("SQLite, long messages", LONG // divisor, long=True))
    rows: list[dict[str, Figure]] = []
    written: list[dict[str, Figure]] = []

    async def measure_case(case: _Case, url: str) -> None:
        report(f"search: {case.what}, {case.size:,} turns, {case.others:,} other users")
        pair = _IndexPair(run.folder, url, case)
        about: dict[str, Figure] = {"what": case.what, "turns": case.size, "others": case.others * TURNS_OF_OTHERS}
        written.append(about | await pair.fill())
        rows.append(about | await pair.time_lookups(run))
        await pair.close()
        delete_files(run.folder, "search*.db*")

    for case in cases:
        await measure_case(case, f"sqlite:///{run.folder / DATABASE}")
    async with open_database("PostgreSQL", run.folder) as url:
        if url is not None:
            await measure_case(_Case("PostgreSQL", ON_SERVER // divisor), url)
    notes = (
        f"A turn has 6 to 18 indexed words out of {WORDS:,}. A query has three to six words, most from one turn, some of them common.",
        "The words belong to no language, so the first query that contains a word stems it in all languages.",
        f"A long message has about 4,000 characters and {LONG_WORDS} words, and is indexed in chunks.",
        "FTS5: a plain FTS5 table with a column for the user, ranked by bm25, the ten best rows.",
    )
    return [
        Table("search", "A search in the index", _COLUMNS, rows, notes),
        Table("search_writes", f"Writing to the index, {TURNS_PER_SESSION} turns at a time", _WRITE_COLUMNS, written),
    ]


# -- generated texts -----------------------------------------------------------


class TextGenerator:
    """A generator of turns and queries, the same in every run.

    Args:
        seed: seed of the random texts.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        words_by_terms = {tuple(extract_terms(word).counts): word for word in map(_make_word, range(WORDS))}
        self.terms = {word: terms[0] for terms, word in words_by_terms.items() if len(terms) == 1}
        """The index term of each word."""
        self._words = [*self.terms]
        self._weights = list(accumulate(1 / (at + 10) for at in range(len(self._words))))

    def make_turn(self) -> list[str]:
        """Return the words of a turn."""
        return self.random.choices(self._words, cum_weights=self._weights, k=self.random.randint(6, 18))

    def make_message(self) -> list[str]:
        """Return the words of a long message, with full stops."""
        words = self.random.choices(self._words, cum_weights=self._weights, k=LONG_WORDS)
        return [f"{word}." if at % 14 == 13 else word for at, word in enumerate(words)]

    def make_question(self, turn: Sequence[str]) -> list[str]:
        """Return some words of a turn and one unrelated word."""
        words = sorted({word.rstrip(".") for word in turn})
        chosen = self.random.sample(words, min(len(words), self.random.randint(2, 5)))
        return [*dict.fromkeys([*chosen, self.make_turn()[0]])]

    def pick_common_words(self) -> list[str]:
        """Return three words that occur in very many turns."""
        return self.random.sample(self._words[:60], 3)

    def pick_rare_word(self) -> list[str]:
        """Return a word that occurs in few turns."""
        return [self.random.choice(self._words[2_000:10_000])]


def _make_word(at: int) -> str:
    """Return word number `at`; all words differ."""
    parts, word = ("ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu"), ""
    for digit in str(at):
        word += parts[int(digit)]
    return word


def _make_documents(turns: Sequence[Sequence[str]], first: int, known: Mapping[str, str]) -> list[Document]:
    documents = []
    for seq, words in enumerate(turns):
        digest = blake2b(" ".join(words).encode(), digest_size=16).digest()
        role = "assistant" if seq % 2 else "user"
        documents.append(
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
    return documents


def _make_long_documents(turns: Sequence[Sequence[str]], first: int) -> list[Document]:
    """Return the documents of long messages, analysed as for indexing."""
    documents = []
    for seq, words in enumerate(turns):
        text, at = " ".join(words), (first + seq) * 60_000
        terms, detail = analyse(text, at)
        documents.append(
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
    return documents


# -- one index, and its peer ---------------------------------------------------


DATABASE: Final = "search.db"


class _Case(NamedTuple):
    """A database and the sizes of the histories in it."""

    what: str
    size: int
    """Turns of the user who searches."""
    others: int = 0
    """Number of other users."""
    long: bool = False
    """True if the turns are long messages."""


class _IndexPair:
    """An index and an FTS5 table with the same turns of one user and of other users."""

    def __init__(self, folder: Path, url: str, case: _Case) -> None:
        self._url = url
        self._file = folder / DATABASE
        self._peers = folder / "search-peer.db"
        self._size, self._others, self._long = case.size, case.others, case.long
        self._texts = TextGenerator(case.size)
        self._kept: list[list[str]] = []
        """Some turns of the user, to make queries from."""

    async def fill(self) -> dict[str, Figure]:
        """Write all turns to both, other users' between the user's; return speeds and sizes."""
        self._index = await open_index(self._url, tenant="bench")
        self._peer = _Fts5Table(self._peers)
        spent, total, waiting = 0.0, 0, list[tuple[Space, str, list[list[str]], int]]()
        for space, id_, first in self._plan_sessions():
            turns = [
                self._texts.make_message() if self._long else self._texts.make_turn() for _ in range(TURNS_PER_SESSION)
            ]
            if space == ANN:
                self._kept += self._texts.random.sample(turns, 2)
            waiting.append((space, id_, turns, first))
            total += TURNS_PER_SESSION
            if len(waiting) == 8:
                spent += await self._write(waiting)
                waiting.clear()
        spent += await self._write(waiting)
        texts = [" ".join(words) for words in self._kept[:400]]
        analyse_texts = repeat(lambda: [analyse(text, 0) for text in texts], max_calls=3, seconds=1.0)
        return {
            "turns": total,
            "analysis": min(await analyse_texts()) / len(texts),
            "rate": total / spent,
            "bytes": _measure_file(self._file) / total if self._file.exists() else None,
            "peer_rate": total / self._peer.spent,
            "peer_bytes": _measure_file(self._peers) / total,
        }

    def _plan_sessions(self) -> Iterator[tuple[Space, str, int]]:
        """Yield each session's user, id and the number of its first turn."""
        mine = self._size // TURNS_PER_SESSION
        for at in range(max(mine, self._others)):
            if at < mine:
                yield ANN, f"s{at}", at * TURNS_PER_SESSION
            if at < self._others:
                yield Space("talk", f"u{at}"), "s0", 0

    async def _write(self, sessions: Sequence[tuple[Space, str, list[list[str]], int]]) -> float:
        known = self._texts.terms
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
        """Time each kind of query, alternating with FTS5."""
        texts, last = self._texts, self._size * 60_000
        turns = self._kept

        def make_query() -> list[str]:
            return texts.make_question(texts.random.choice(turns))

        def terms(words: Sequence[str], filters: Filters) -> Lookup:
            return Lookup(space=ANN, terms=tuple(texts.terms[word] for word in words), filters=filters)

        async def search() -> None:
            await self._search(" ".join(make_query()), now=last)

        day, whole_space = 1440 * 60_000, Filters()
        since = last // 2
        filters = Filters(since=since, until=since + day)
        blocks: dict[str, Block] = {
            "search": repeat_async(search, max_calls=200, seconds=0.5),
            "analysis": repeat(lambda: parse_question(" ".join(make_query()), now=last), max_calls=200, seconds=0.5),
            "question": self._make_lookup_block(lambda: terms(make_query(), whole_space)),
            "common": self._make_lookup_block(lambda: terms(texts.pick_common_words(), whole_space)),
            "rare": self._make_lookup_block(lambda: terms(texts.pick_rare_word(), whole_space)),
            "day": self._make_lookup_block(lambda: terms(make_query(), filters)),
            "peer": self._peer.make_block(make_query),
        }
        samples_by_name = await alternate(blocks, rounds=run.rounds, limit=run.limit)
        figures: dict[str, Figure] = {name: samples.median for name, samples in samples_by_name.items()}
        figures["search_p99"] = samples_by_name["search"].quantile(0.99)
        figures["peer_p99"] = samples_by_name["peer"].quantile(0.99)
        figures["ratio"] = samples_by_name["peer"].median / samples_by_name["search"].median
        return figures

    async def _search(self, text: str, *, now: int) -> None:
        """Do what a search does with the index: analysis, lookup, ranking, the ten best."""
        question = parse_question(text, now=now)
        lookup = Lookup(space=ANN, terms=question.terms)
        ranking = Ranking(question, await self._index.lookup(lookup))
        if places := ranking.list_missing(10):
            ranking.fill(await self._index.near(lookup, places), places)
        ranking.list_hits(10)

    def _make_lookup_block(self, make: Callable[[], Lookup]) -> Block:
        async def ask() -> None:
            await self._index.lookup(make())

        return repeat_async(ask, max_calls=200, seconds=0.5)

    async def close(self) -> None:
        """Close the index and the FTS5 table."""
        await self._index.close()
        self._peer.close()


def _measure_file(path: Path) -> int:
    """Return the bytes of a database after a checkpoint of its write-ahead log."""
    raw = apsw.Connection(str(path))
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    raw.close()
    return path.stat().st_size


def _make_batch(id_: str, put: Sequence[Document]) -> Batch:
    progress = Progress(identity="i", version=len(put), next_seq=len(put), talk=len(put))
    return Batch(source=Source(id_, "i"), progress=progress, put=put, expect=None)


class _Fts5Table:
    """The simple alternative: one FTS5 table for all users."""

    def __init__(self, path: Path) -> None:
        self._raw = apsw.Connection(str(path))
        self._raw.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
        self._raw.execute("CREATE VIRTUAL TABLE turns USING fts5 (user UNINDEXED, text)")
        self.spent = 0.0

    def write(self, rows: Sequence[tuple[str, str]]) -> None:
        """Insert turns in one transaction."""
        started = clock()
        with self._raw:
            self._raw.executemany("INSERT INTO turns VALUES (?, ?)", rows)
        self.spent += clock() - started

    def make_block(self, make: Callable[[], Sequence[str]]) -> Block:
        """Return a block of queries."""
        sql = "SELECT rowid, rank FROM turns WHERE turns MATCH ? AND user = ? ORDER BY rank LIMIT 10"

        async def ask() -> None:
            words = " OR ".join(f'"{word}"' for word in make())
            self._raw.execute(sql, (words, ANN.name)).fetchall()

        return repeat_async(ask, max_calls=200, seconds=0.5)

    def close(self) -> None:
        """Close the database."""
        self._raw.close()
