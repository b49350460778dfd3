"""Recognising a request by what it says, against few and very many stored sessions of the same user."""

from __future__ import annotations

from benchmarks.corpus import prose, roster
from benchmarks.many import each
from benchmarks.peers import BUDGET
from benchmarks.places import PLACES, reached
from benchmarks.run import Run, clear
from benchmarks.tables import Column, Figure, Table, duration, ratio, whole
from benchmarks.timing import Samples, clock, settle, told
from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry, SessionRef
from holdfast.holdfast import Holdfast
from holdfast.matching.session_match import MatchFinder, Sender
from holdfast.sessions.forking import fork_for_request
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession

MANY = {"SQLite file": 1_000_000}
"""Sessions on a database; on the others a tenth."""
FEW = 10
MESSAGES = 100
"""Of a request."""
USER = "bench"
_COLUMNS = [
    Column("what", ""),
    Column("sessions", "sessions", whole),
    Column("goes_on", "goes on, p50", duration),
    Column("goes_on_p99", "p99", duration),
    Column("edited", "edited, p50", duration),
    Column("shared", "its opening is everybody's, p50", duration),
    Column("new", "new, p50", duration),
    Column("omitting", "the last 8 alone, p50", duration),
    Column("ratio", f"goes on, beside {FEW}", ratio),
]

FORKED = (10, 10_000)
"""Messages of the sessions that are forked."""
_FORK_COLUMNS = [
    Column("what", ""),
    Column("messages", "messages", whole),
    Column("fork", "fork, p50", duration),
    Column("append", "a turn's append, p50", duration),
]


async def measure(run: Run) -> list[Table]:
    """On every database."""
    rows: list[dict[str, Figure]] = []
    for name in PLACES:
        async with reached(name, run.folder) as url:
            if url is not None:
                rows += await _measured(run, name, url)
        clear(run.folder, "servers.db*")
    notes = (
        "All sessions are one user's, and there is no index. Half of them begin with the same question and the same reply.",
        f"A request has {MESSAGES} messages: a session's and a new one; edited in the middle; an opening that half of all share.",
    )
    tables = [Table("matching", "Recognising the session of a request that names none", _COLUMNS, rows, notes)]
    return [*tables, Table("forks", "Forking a session, next to a turn's append", _FORK_COLUMNS, await _forks(run))]


async def _forks(run: Run) -> list[dict[str, Figure]]:
    """Time a matching fork of short and long sessions, and the append of a turn's two messages to them."""
    rows: list[dict[str, Figure]] = []
    for name in PLACES:
        async with reached(name, run.folder) as url:
            if url is None:
                continue
            async with Holdfast(url, roster=roster("token_window", BUDGET), max_sessions=0, index=None) as hf:
                for count in FORKED:
                    await _put(hf, f"parent{count}", _talk("parent", count))
                    rows.append({"what": name, "messages": count, **await _fork_times(hf, f"parent{count}", count)})
        clear(run.folder, "servers.db*")
    return rows


async def _fork_times(hf: Holdfast, parent: str, count: int) -> dict[str, Figure]:
    ref, forks, appends = SessionRef(USER, parent), list[float](), list[float]()
    session = await hf.store.get(ref)
    for at in range(5):
        started = clock()
        await fork_for_request(hf.engine, session, count)
        forks.append(clock() - started)
        new = [NewEntry(message=one, tokens=10, timestamp=0) for one in _talk(f"turn{at}", 2)]
        started = clock()
        await hf.store.append(ref, Append(entries=new, timestamp=hf.clock()))
        appends.append(clock() - started)
    return {"fork": Samples(forks).median, "append": Samples(appends).median}


async def _measured(run: Run, name: str, url: str) -> list[dict[str, Figure]]:
    most = MANY.get(name, 100_000) // (100 if run.quick else 1)
    rows: list[dict[str, Figure]] = []
    async with Holdfast(url, roster=roster("token_window", BUDGET), max_sessions=0, index=None) as hf:
        await _mine(hf)
        made = 1
        for count in (FEW, most):
            told(f"matching: {name}, {count:,} sessions")
            await _others(hf, made, count)
            made = count
            rows.append({"what": name, "sessions": count, **await _times(hf)})
    first = rows[0]["goes_on"]
    for row in rows:
        row["ratio"] = row["goes_on"] / first  # type: ignore[operator]  # both are numbers
    return rows


def _talk(name: str, count: int = MESSAGES - 1) -> list[Message]:
    """A conversation that nobody else has."""
    words = prose(60)
    return [Message(role="assistant" if at % 2 else "user", content=f"{name}, {at}: {words}") for at in range(count)]


OPENING = [Message(role="user", content="Hi"), Message(role="assistant", content="Hello! What can I do for you?")]


async def _mine(hf: Holdfast) -> None:
    await _put(hf, "mine", _talk("mine", MESSAGES))


async def _others(hf: Holdfast, first: int, stop: int) -> None:
    async def make(number: int) -> None:
        at = first + number
        await _put(hf, f"s{at}", OPENING if at % 2 else _talk(f"s{at}", 2))

    await each(stop - first, make)


async def _put(hf: Holdfast, name: str, messages: list[Message]) -> None:
    new = NewSession(id=name, user_id=USER, timestamp=hf.clock())
    await hf.store.replace(new, [NewEntry(message=one, tokens=10, timestamp=0) for one in messages], fresh=True)


async def _times(hf: Holdfast) -> dict[str, Figure]:
    mine, new = _talk("mine", MESSAGES), Message(role="user", content="and now?")
    asked = {
        "goes_on": ([*mine, new], "mine"),
        "edited": ([*mine[: MESSAGES // 2], new], "mine"),
        "shared": ([*OPENING, *_talk("else")], ...),
        "new": (_talk("else"), None),
        "omitting": ([*mine[-8:], new], "mine"),
    }
    sender = Sender(USER, True, lambda _: "idle", lambda _: False)
    settle()
    figures: dict[str, Figure] = {}
    for name, (messages, expected) in asked.items():
        times = []
        for _ in range(100):
            started = clock()
            found = await MatchFinder(hf.store, sender, messages).find()
            times.append(clock() - started)
            if expected is not ...:
                assert (found.session.id if found else None) == expected
        samples = Samples(times)
        figures[name] = samples.median
        if name == "goes_on":
            figures["goes_on_p99"] = samples.quantile(0.99)
    return figures
