"""Matching requests without a session id to few and to very many stored sessions of the same user."""

from __future__ import annotations

from benchmarks.corpus import make_roster, make_text
from benchmarks.databases import DATABASES, open_database
from benchmarks.many import run_each
from benchmarks.peers import BUDGET
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table, format_count, format_duration, format_ratio
from benchmarks.timing import Samples, clock, freeze_heap, report
from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry, SessionRef
from holdfast.holdfast import Holdfast
from holdfast.sessions.forks import copy_turns
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from holdfast.turns.place import Trail
from holdfast.turns.session_finder import Finder, Sender

MANY = {"SQLite file": 1_000_000}
"""Sessions by database; a tenth of it on the other databases."""
FEW = 10
MESSAGES = 100
"""Messages of a request."""
USER = "bench"
_COLUMNS = [
    Column("what", ""),
    Column("sessions", "sessions", format_count),
    Column("continued", "continues, p50", format_duration),
    Column("continued_p99", "p99", format_duration),
    Column("edited", "edited, p50", format_duration),
    Column("shared", "shared opening, p50", format_duration),
    Column("new", "new session, p50", format_duration),
    Column("omitting", "last 8 messages only, p50", format_duration),
    Column("ratio", f"continues, vs. {FEW} sessions", format_ratio),
]

FORKED = (10, 10_000)
"""Lengths of the sessions that are forked, in messages."""
_FORK_COLUMNS = [
    Column("what", ""),
    Column("messages", "messages", format_count),
    Column("fork", "fork, p50", format_duration),
    Column("append", "append of one turn, p50", format_duration),
]


async def measure(run: Run) -> list[Table]:
    """Measure matching and forks on every database."""
    rows: list[dict[str, Figure]] = []
    for name in DATABASES:
        async with open_database(name, run.folder) as url:
            if url is not None:
                rows += await _measure_database(run, name, url)
        delete_files(run.folder, "servers.db*")
    notes = (
        "All sessions belong to one user, and there is no index. Half of them start with the same question and reply.",
        f"continues: the {MESSAGES} messages of a session and a new one. edited: the first half of these messages and a new one.",
        "shared opening: the start that half of all sessions share, then other messages.",
    )
    tables = [Table("matching", "Matching a request without a session id", _COLUMNS, rows, notes)]
    return [
        *tables,
        Table("forks", "Forking a session, compared with appending a turn", _FORK_COLUMNS, await _measure_forks(run)),
    ]


async def _measure_forks(run: Run) -> list[dict[str, Figure]]:
    """Time forks of short and long sessions, and the append of a turn's two messages to them."""
    rows: list[dict[str, Figure]] = []
    for name in DATABASES:
        async with open_database(name, run.folder) as url:
            if url is None:
                continue
            async with Holdfast(url, roster=make_roster("token_window", BUDGET), max_sessions=0, index=None) as hf:
                for count in FORKED:
                    await _store_session(hf, f"parent{count}", _make_conversation("parent", count))
                    rows.append({"what": name, "messages": count, **await _time_forks(hf, f"parent{count}", count)})
        delete_files(run.folder, "servers.db*")
    return rows


async def _time_forks(hf: Holdfast, parent: str, count: int) -> dict[str, Figure]:
    ref, forks, appends = SessionRef(USER, parent), list[float](), list[float]()
    session = await hf.store.get(ref)
    for at in range(5):
        started = clock()
        await copy_turns(hf.engine, session, count, None)
        forks.append(clock() - started)
        new = [NewEntry(message=one, tokens=10, timestamp=0) for one in _make_conversation(f"turn{at}", 2)]
        started = clock()
        await hf.store.append(ref, Append(entries=new, timestamp=hf.clock()))
        appends.append(clock() - started)
    return {"fork": Samples(forks).median, "append": Samples(appends).median}


async def _measure_database(run: Run, name: str, url: str) -> list[dict[str, Figure]]:
    most = MANY.get(name, 100_000) // (100 if run.quick else 1)
    rows: list[dict[str, Figure]] = []
    async with Holdfast(url, roster=make_roster("token_window", BUDGET), max_sessions=0, index=None) as hf:
        await store_own(hf)
        stored = 1
        for count in (FEW, most):
            report(f"matching: {name}, {count:,} sessions")
            await _store_others(hf, stored, count)
            stored = count
            rows.append({"what": name, "sessions": count, **await time_requests(hf)})
    first = rows[0]["continued"]
    for row in rows:
        row["ratio"] = row["continued"] / first  # type: ignore[operator]  # both are numbers
    return rows


def _make_conversation(name: str, count: int = MESSAGES - 1) -> list[Message]:
    """Return a conversation that no other session shares."""
    words = make_text(60)
    return [Message(role="assistant" if at % 2 else "user", content=f"{name}, {at}: {words}") for at in range(count)]


OPENING = [Message(role="user", content="Hi"), Message(role="assistant", content="Hello! What can I do for you?")]


async def store_own(hf: Holdfast) -> None:
    """Store the session that requests of `time_requests` continue."""
    await _store_session(hf, "mine", _make_conversation("mine", MESSAGES))


async def _store_others(hf: Holdfast, first: int, stop: int) -> None:
    async def make(number: int) -> None:
        at = first + number
        await _store_session(hf, f"s{at}", OPENING if at % 2 else _make_conversation(f"s{at}", 2))

    await run_each(stop - first, make)


async def _store_session(hf: Holdfast, name: str, messages: list[Message]) -> None:
    new = NewSession(id=name, user_id=USER, timestamp=hf.clock())
    await hf.store.replace(new, [NewEntry(message=one, tokens=10, timestamp=0) for one in messages], fresh=True)


async def time_requests(hf: Holdfast) -> dict[str, Figure]:
    """Return the time of finding the session of a request without a session id, for several kinds of requests."""
    mine, new = _make_conversation("mine", MESSAGES), Message(role="user", content="and now?")
    requests = {
        "continued": ([*mine, new], "mine"),
        "edited": ([*mine[: MESSAGES // 2], new], "mine"),
        "shared": ([*OPENING, *_make_conversation("else")], ...),
        "new": (_make_conversation("else"), None),
        "omitting": ([*mine[-8:], new], "mine"),
    }
    freeze_heap()
    figures: dict[str, Figure] = {}
    for name, (messages, expected) in requests.items():
        times = []
        for _ in range(100):
            started = clock()
            found = await Finder(hf.store, Sender(USER, await Trail.make(messages)), lambda _: False).find()
            times.append(clock() - started)
            if expected is not ...:
                assert (found.id if found else None) == expected
        samples = Samples(times)
        figures[name] = samples.median
        if name == "continued":
            figures["continued_p99"] = samples.quantile(0.99)
    return figures
