"""A slow and obvious reference for session matching: which session a request belongs to, and how its log changes.

Written from docs/reconcile.md and docs/new-messages.md alone. It knows no digests and no store: each message of a log has the path that led to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Data = dict[str, Any]
RUN = 3
"""Visible messages that a run in the middle of a log has at least, where no session is named."""


def text(message: Data) -> str:
    """Return the words of a message without trailing white space."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content)
    return (content or "").rstrip()


def images(message: Data) -> list[str]:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def visible(message: Data) -> bool:
    return message["role"] != "tool" and not message.get("tool_calls")


def read_content(message: Data) -> Any:
    """Return the content of a message without call ids."""
    calls = [
        (one["function"]["name"], json.loads(one["function"]["arguments"])) for one in message.get("tool_calls") or ()
    ]
    return [message["role"], text(message), images(message), calls]


@dataclass
class Entry:
    """A message in a log."""

    seq: int
    message: Data
    path: tuple[int, ...]
    """`seq` of all that leads to it, itself included."""
    cut: bool = False
    """An interrupted reply, of which a client may have seen less."""

    def same(self, sent: Data) -> bool:
        """Return True if a client may have sent this message in that form."""
        if read_content(self.message) == read_content(sent):
            return True
        if self.message["role"] != sent["role"] or not visible(sent) or not visible(self.message):
            return False
        if images(self.message) and not images(sent):
            return text(self.message) == text(sent)
        return self.cut and text(sent) != "" and text(self.message).startswith(text(sent))


@dataclass
class Log:
    """A session as it should be."""

    owner: tuple[str, str]
    """Tenant and user."""
    id: str
    system: str | None = None
    entries: dict[int, Entry] = field(default_factory=dict)
    live: tuple[int, ...] = ()
    used: int = 0

    def messages(self, path: Sequence[int]) -> list[Data]:
        return [self.entries[seq].message for seq in path]

    def list_visible(self, path: Sequence[int]) -> list[Entry]:
        """Return the visible entries of a path."""
        return [self.entries[seq] for seq in path if visible(self.entries[seq].message)]

    def without_open_calls(self, tools: tuple[int, ...]) -> tuple[int, ...]:
        """Return tool messages up to the last one whose calls all have a result."""
        starts = [at for at, seq in enumerate(tools) if self.entries[seq].message.get("tool_calls")]
        if not starts:
            return tools
        calls, *told = self.messages(tools[starts[-1] :])
        wanted = sorted(call["id"] for call in calls["tool_calls"])
        return tools if wanted == sorted(one["tool_call_id"] for one in told) else tools[: starts[-1]]

    def tools_behind(self, entry: Entry) -> tuple[int, ...]:
        """Return the tool messages after an entry: on the live path, else on the branch that was written last."""
        paths = [self.live] if entry.seq in self.live else [one.path for one in self.entries.values()]
        found: tuple[int, ...] = ()
        for path in paths:
            if entry.seq not in path:
                continue
            behind = path[path.index(entry.seq) + 1 :]
            stop = next((at for at, seq in enumerate(behind) if visible(self.entries[seq].message)), len(behind))
            found = max(found, behind[:stop], key=lambda some: (max(some, default=-1), len(some)))
        return found


@dataclass
class Landing:
    """Where a request belongs, and the expected result."""

    log: Log | None
    """None: a new session."""
    relations: set[str]
    """What it may be called."""
    live: list[Data]
    """The live path when the request was taken in."""
    retires: bool = False


@dataclass(frozen=True)
class Common:
    """The last message that both have in common."""

    log: Log
    entry: Entry
    shared: int
    """Visible messages of the request, up to it."""
    run: int = 0
    """Messages of a run in the middle that lead up to it."""
    sure: bool = True
    """Whether the run has a reply that was not cut, and is word for word: else whether it is found is left open."""


def land(
    logs: Sequence[Log], sent: list[Data], system: str | None, *, named: Log | None, mode: str = "auto"
) -> list[Landing]:
    """What the rules say of a request; several where they leave it open which of equal sessions it is.

    Args:
        logs: those of the request's owner; none where matching is off.
        sent: its messages without the leading system messages.
        system: its system prompt.
        named: the session that it names.
        mode: `session_mode`.
    """
    told = any(message["role"] == "assistant" for message in sent)
    if named is not None and mode == "auto" and not told:
        return [_delta(named, sent)]
    if named is not None:
        return _in_session(named, sent, system, mode)
    found = _find_continued(logs, sent, system, mode) + _among(logs, sent, system, mode)
    # What was resent word for word is found first: where that leads elsewhere, it will do as well.
    return found + _among(logs, sent, system, mode, like=read_content)


def _find_continued(logs: Sequence[Log], sent: list[Data], system: str | None, mode: str) -> list[Landing]:
    """Return the sessions that the request simply continues, longest first; they come before any edit."""
    shown = [message for message in sent if visible(message)]
    found: list[tuple[int, Log]] = []
    for log in logs:
        path = log.list_visible(log.live)
        answered = len(path) <= len(shown) and any(one.message["role"] == "assistant" for one in path)
        if answered and all(one.same(message) for one, message in zip(path, shown, strict=False)):
            found.append((len(path), log))
    found.sort(key=lambda one: one[0], reverse=True)
    return [landing for _, log in found for landing in _in_session(log, sent, system, mode)]


def _among(
    logs: Sequence[Log], sent: list[Data], system: str | None, mode: str, *, like: Callable[[Data], Any] | None = None
) -> list[Landing]:
    prefix = _prefix(logs, sent, system, any_=False, like=like)
    runs = _runs(logs, sent, prefix) if mode != "transcript" else []
    most, begun = max((run.run for run in runs), default=0), prefix.shared if prefix else 0
    found: list[Landing] = []
    if runs and most >= begun:
        # The same words may stand in several sessions: the one that has most of them is wanted, any of them will do.
        runs.sort(key=lambda run: (run.shared, run.run), reverse=True)
        found = [one for run in runs for one in _in_session(run.log, sent, system, mode)]
        if most > begun and all(run.sure for run in runs):
            return found
    if prefix is not None:
        found += _in_session(prefix.log, sent, system, mode)
        # Of several that have as much of the beginning, the one that has the end as well will do.
        for log in logs:
            other = _prefix([log], sent, system, any_=False)
            if other and log is not prefix.log and other.shared == prefix.shared and _run(log, sent, other, least=1):
                found += _in_session(log, sent, system, mode)
        shared = prefix.log.list_visible(prefix.entry.path)
        if any(entry.message["role"] == "assistant" for entry in shared):
            return found
        # Only calls are in common: recognised as long as the log has not gone on behind them, else open.
        same = [one for log in logs if (one := _prefix([log], sent, system, any_=False)) is not None]
        found += [one for other in same for one in _in_session(other.log, sent, system, mode)]
    return [*found, Landing(None, {"new"}, sent)]


def _runs(logs: Sequence[Log], sent: list[Data], prefix: Common | None) -> list[Common]:
    """Where a request goes on that leaves something out; not looked for where all replies in it are in common already."""
    shown = [message for message in sent if visible(message)]
    if prefix and all(message["role"] != "assistant" for message in shown[prefix.shared :]):
        return []
    return [run for log in logs for run in _run(log, sent, None, least=RUN)[:1]]


def _in_session(log: Log, sent: list[Data], system: str | None, mode: str) -> list[Landing]:
    """Return the possible results for a log, the preferred one first."""
    ways: list[Common | None] = []
    for like in (None, images):
        common = _goes_on(log, sent) or _prefix([log], sent, system, any_=True, like=like)
        runs = _run(log, sent, common, least=1) if mode != "transcript" else []
        # Where the log says the same twice, any of them will do; and of two runs with something changed between them
        # the second need not count.
        told = [read_content(entry.message) for entry in log.list_visible(log.live)]
        ways += runs if any(told.count(one) > 1 for one in told) else [*runs[:1], *runs[-1:]]
        ways += [] if runs and runs[0].sure else [common]
    resumed = _resume_calls(log, sent) if mode != "transcript" else None
    return [
        *([resumed] if resumed else []),
        *(
            _merge(way, sent)
            if way is not None
            else Landing(log, {"replaced" if log.live else "new"}, sent, retires=bool(log.live))
            for way in ways
        ),
    ]


def _resume_calls(log: Log, sent: list[Data]) -> Landing | None:
    """Match a request that has only the messages of the current turn: the ids of its calls are those at the end of the live path."""
    first = next((at for at, message in enumerate(sent) if not visible(message)), None)
    if first is None or any(visible(message) and message["role"] == "assistant" for message in sent):
        return None
    end = max((at + 1 for at, seq in enumerate(log.live) if visible(log.entries[seq].message)), default=0)
    wanted = _read_call_ids(sent[first])
    begin = next(
        (
            at
            for at, seq in enumerate(log.live)
            if at >= end and wanted and wanted <= _read_call_ids(log.entries[seq].message)
        ),
        None,
    )
    before = [log.entries[seq] for seq in log.live[end - first : end]] if first <= end else []
    if begin is None or len(before) < first or not all(map(Entry.same, before, sent)):
        return None
    return _go_on_after(log, log.live[:begin], log.live[begin:], sent[first:])


def _read_call_ids(message: Data) -> set[str]:
    return {call["id"] for call in message.get("tool_calls") or ()}


def _goes_on(log: Log, sent: list[Data]) -> Common | None:
    """Match the whole live path if only new messages follow it; other branches are not checked then."""
    shown, path = [message for message in sent if visible(message)], log.list_visible(log.live)
    more = shown[len(path) :]
    if not path or len(path) > len(shown) or any(message["role"] == "assistant" for message in more):
        return None
    if any(read_content(one.message) != read_content(message) for one, message in zip(path, shown, strict=False)):
        return None
    return Common(log, path[-1], len(path))


def _delta(log: Log, sent: list[Data]) -> Landing:
    last = log.messages(log.live)[-len(sent) :]
    if [read_content(one) for one in last] == [read_content(one) for one in sent] and all(
        one["role"] != "assistant" for one in sent
    ):
        return Landing(log, {"replayed"}, log.messages(log.live))
    return Landing(log, {"delta" if log.live else "new"}, log.messages(log.live) + sent)


def _prefix(
    logs: Sequence[Log],
    sent: list[Data],
    system: str | None,
    *,
    any_: bool,
    like: Callable[[Data], Any] | None = None,
) -> Common | None:
    """The longest common beginning; then an equal system prompt, one that goes on, the one used last.

    Args:
        logs: where it is looked for.
        sent: the request.
        system: its system prompt.
        any_: whether it need not have a reply in it.
        like: what has to be equal in each message, where a client may have changed it.
    """
    shown = [message for message in sent if visible(message)]
    best: tuple[Any, Common] | None = None
    for log in logs:
        for entry in log.entries.values():
            path = log.list_visible(entry.path)
            if not visible(entry.message) or len(path) > len(shown):
                continue
            if not all(one.same(message) for one, message in zip(path, shown, strict=False)):
                continue
            if like and any(like(one.message) != like(message) for one, message in zip(path, shown, strict=False)):
                continue
            asked = _calls_in_common(log, entry, sent)
            if not any_ and not asked and not any(one.message["role"] == "assistant" for one in path):
                continue
            equal = log.system is None or system is None or log.system == system
            goes_on = log.list_visible(log.live)[-1:] == [entry]
            exact = sum(
                read_content(one.message) == read_content(message) for one, message in zip(path, shown, strict=False)
            )
            rank = (len(path), exact, equal, goes_on, log.used, entry.seq in log.live, entry.seq)
            if best is None or rank > best[0]:
                best = rank, Common(log, entry, len(path))
    return best[1] if best else None


def _calls_in_common(log: Log, entry: Entry, sent: list[Data]) -> int:
    """Count the assistant messages with tool calls that both have, each after the same visible message."""
    there = [log.entries[seq].message for seq in (*entry.path, *log.tools_behind(entry))]
    count = sum(visible(message) for message in there)
    ours, theirs = _between(there, count), _between(sent, count)
    return sum(
        read_content(one) == read_content(other)
        for some, more in zip(ours, theirs, strict=True)
        for one, other in zip(some, more, strict=False)
    )


def _between(messages: list[Data], count: int) -> list[list[Data]]:
    """Return the messages with calls after each of the first visible messages."""
    found: list[list[Data]] = [[] for _ in range(count + 1)]
    at = 0
    for message in messages:
        at += visible(message)
        if at > count:
            break
        if message.get("tool_calls"):
            found[at].append(message)
    return found


def _run(log: Log, sent: list[Data], prefix: Common | None, *, least: int) -> list[Common]:
    """Runs in the middle of a live path: the client left something out before them. Those that are best to go on from first.

    One begins with the request, or skips more than the request has in its place. It has all replies that are left.
    """
    shown, path = [message for message in sent if visible(message)], log.list_visible(log.live)
    start, head = prefix.shared if prefix else 0, 0
    if prefix:
        if prefix.entry not in path:
            return []
        head = path.index(prefix.entry) + 1
    found: list[tuple[Any, Common]] = []
    for at in range(start, len(shown)):
        for place in range(head, len(path)):
            pairs = list(zip(path[place:], shown[at:], strict=False))
            length = next((n for n, (one, message) in enumerate(pairs) if not one.same(message)), len(pairs))
            replies = [n for n in range(length) if shown[at + n]["role"] == "assistant"]
            users = any(shown[at + n]["role"] == "user" for n in range(length))
            unknown, skipped = at - start, place - head
            if any(message["role"] == "assistant" for message in shown[at + length :]):
                continue  # replies that the log does not have behind it make it an edit
            if not replies or length < least or (least > 1 and not users):
                continue
            if skipped == 0 or not (at == 0 or skipped > unknown):
                continue
            if unknown and length == 1 and place + 1 < len(path):
                continue  # one reply, like "OK", may stand anywhere
            intact = [n for n in replies if not path[place + n].cut]
            exact = all(read_content(path[place + n].message) == read_content(shown[at + n]) for n in range(length))
            sure = bool(intact) and exact and not (unknown and intact[-1] == 0 and place + 1 < len(path))
            rank = (bool(intact), at + (intact or replies)[-1], length, place)
            found.append((rank, Common(log, path[place + length - 1], at + length, length, sure)))
    return [common for _, common in sorted(found, key=lambda one: one[0], reverse=True)]


def _merge(common: Common, sent: list[Data]) -> Landing:
    log, entry = common.log, common.entry
    behind = [at for at, message in enumerate(sent) if visible(message)][common.shared - 1] + 1
    return _go_on_after(log, entry.path, log.tools_behind(entry), sent[behind:])


def _go_on_after(log: Log, path: tuple[int, ...], tools: tuple[int, ...], rest: list[Data]) -> Landing:
    """Return what becomes of the rest of a request after a path, and after the tool messages that follow it."""
    kept = tools
    if rest and not visible(rest[0]):
        equal = 0
        for seq, message in zip(tools, rest, strict=False):
            if visible(message) or not _same_tool(log.entries[seq].message, message):
                break
            equal += 1
        rest = rest[equal:]
        kept = tools[:equal] if rest and not visible(rest[0]) else tools
    if not rest:
        kept = log.without_open_calls(kept)  # nobody answers them: the reply is wanted anew
    base = (*path, *kept)
    retires = log.live != base[: len(log.live)]
    if log.live[: len(base)] == base:
        relation = {"edited" if retires else "continued"} if rest else {"regenerated" if retires else "replayed"}
    else:
        # A branch that was left, and is taken up again.
        relation = {"continued", "edited"} if rest else {"replayed", "regenerated"}
    return Landing(log, relation, log.messages(base) + rest, retires=retires)


def _same_tool(stored: Data, message: Data) -> bool:
    """Compare without ids: clients generate new ones."""
    return bool(read_content(stored) == read_content(message))
