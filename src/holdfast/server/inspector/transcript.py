"""Divide a session's log into pages, turns, and blocks of messages that belong together, as the transcript shows them.

The boundaries of pages depend only on the log before them, so a link to a message opens the same page while the log grows. A page begins
with a turn where that is possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, Final, Literal, NamedTuple

from holdfast.domain.artifact import NAMED_ARTIFACTS
from holdfast.domain.media.parts import get_frames
from holdfast.domain.medium import Medium, find_medium
from holdfast.domain.messages import REASONING_PARTS, Part, ToolCall
from holdfast.domain.refusals import read_refusals
from holdfast.domain.session import CHILD, SPEAKER, Entry, ModelCall, Session, SessionRef
from holdfast.server.inspector import json_tree as _json_tree  # noqa: F401  # adds filters
from holdfast.server.inspector.frame import GLOBALS
from holdfast.server.limits import INSPECTOR_MESSAGES
from holdfast.stores.base import Store
from holdfast.wire.openai import to_entry_json

_SLACK: Final = INSPECTOR_MESSAGES // 4
"""Messages after the regular beginning of a page among which a better beginning is looked for."""
_STEP: Final = INSPECTOR_MESSAGES - _SLACK
"""Regular distance between the beginnings of two pages."""
_REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
"""Fields of a message in which upstreams return the model's reasoning as text."""

_DAY: Final = 86_400_000
"""Milliseconds of a day. Messages of a turn that are further apart were not written by one run of an agent."""

# -- pages -----------------------------------------------------------------------


class LogPage(NamedTuple):
    """A page of a log: the entries from `start` up to, but not including, `stop`."""

    entries: tuple[Entry, ...]
    start: int
    stop: int
    end: int
    """Number of entries in the whole log."""
    is_cut: tuple[bool, bool]
    """True, for the first and the last turn, if a part of the turn is on another page."""

    @property
    def is_newest(self) -> bool:
        return self.stop >= self.end

    @property
    def older(self) -> int | None:
        """`seq` of a message on the page before; None if this is the first page."""
        return self.start - 1 if self.start else None

    @property
    def newer(self) -> int | None:
        """`seq` of the first message of the next page; None if this is the newest page."""
        return None if self.is_newest else self.stop


async def read_page(store: Store, ref: SessionRef, end: int, at: int | None = None) -> LogPage:
    """Return the page that contains a message.

    Args:
        store: store of the session.
        ref: the session.
        end: number of entries in the log.
        at: `seq` of the message; None: return the newest page.
    """
    newest = max(0, end - _SLACK) // _STEP
    number = newest if at is None else min(at // _STEP, newest)
    page = await _read_page(store, ref, end, number, newest)
    if at is not None and at < page.start:
        page = await _read_page(store, ref, end, number - 1, newest)
    return page


async def _read_page(store: Store, ref: SessionRef, end: int, number: int, newest: int) -> LogPage:
    begin = number * _STEP
    limit = end if number == newest else begin + _STEP + _SLACK
    found = await store.entries(ref, start=max(0, begin - 1), stop=limit, retired=True)
    start = _find_start(found, begin)
    stop = end if number == newest else _find_start(found, begin + _STEP)
    turns = {entry.seq: entry.turn_id for entry in found}
    is_cut = [0 < at < end and turns.get(at - 1) == turns.get(at) for at in (start, stop)]
    shown = tuple(entry for entry in found if start <= entry.seq < stop)
    return LogPage(shown, start, stop, end, (is_cut[0], is_cut[1]))


def _find_start(entries: Sequence[Entry], begin: int) -> int:
    """Return the `seq` with which the page begins whose regular beginning is `begin`.

    That is the first message of a turn if one is near, else the first message that does not belong to an earlier tool call, else `begin`.
    """
    if begin == 0:
        return 0
    near = [entry for entry in entries if begin - 1 <= entry.seq < begin + _SLACK]
    for before, entry in pairwise(near):
        if entry.turn_id != before.turn_id:
            return entry.seq
    return next((entry.seq for entry in near if entry.seq >= begin and entry.unit == entry.seq), begin)


# -- blocks ----------------------------------------------------------------------


class ContentPiece(NamedTuple):
    """A piece of a message's content."""

    kind: Literal["text", "reasoning", "medium", "frames", "data"]
    value: Any
    """Text; the fields of a part; or a `Medium`."""
    part: int = 0
    """Index of the part in the content."""


@dataclass(frozen=True)
class Block:
    """A message, with the results of its tool calls, or with the retired messages that are folded there."""

    entry: Entry
    calls: tuple[tuple[ToolCall, Entry | None], ...] = ()
    """The tool calls of the message with their results; None: the result is not on this page, or missing."""
    retired: tuple[Block, ...] = ()
    """Retired messages. If there are any, the block is a fold of these, and `entry` is the first of them."""
    reason: str = ""
    """The reason why the retired messages left the conversation, such as `by an edit`; empty if it is not known."""

    @property
    def pieces(self) -> list[ContentPiece]:
        """Pieces of the content, in order."""
        return list(list_pieces(self.entry))

    @property
    def seqs(self) -> set[int]:
        """Numbers of all messages in the block."""
        found = {self.entry.seq} | {result.seq for _, result in self.calls if result is not None}
        return found.union(*(block.seqs for block in self.retired))

    @property
    def speaker(self) -> str | None:
        """Name of the person or agent that wrote the message; None if it is not known."""
        named = (self.entry.metadata or {}).get(SPEAKER)
        return named if isinstance(named, str) else self.entry.agent or self.entry.message.name

    @property
    def refused_by(self) -> list[str]:
        """Names of the upstreams that refused the message."""
        return list(read_refusals(self.entry.metadata))

    @property
    def artifacts(self) -> list[tuple[str, Any]]:
        """Names and versions of the artifacts that the message saved or names."""
        named = (self.entry.metadata or {}).get(NAMED_ARTIFACTS)
        items = named if isinstance(named, list) else []
        return [(one["name"], one.get("version")) for one in items if isinstance(one, dict) and "name" in one]

    @property
    def is_interrupted(self) -> bool:
        return bool((self.entry.metadata or {}).get("interrupted"))


def get_child(session: Session, result: Entry) -> SessionRef | None:
    """Return the session in which a called agent worked, from the result of its call; None if no agent was called."""
    child = (result.metadata or {}).get(CHILD)
    return SessionRef(session.user_id, child) if isinstance(child, str) and child else None


@dataclass
class TurnGroup:
    """The messages of one turn on a page, and the retired messages in front of them."""

    turn_id: int
    blocks: list[Block] = field(default_factory=list)
    calls: list[ModelCall] = field(default_factory=list)
    """The model calls of the turn, newest first."""
    is_whole: bool = True
    """False if a part of the turn is on another page."""

    @property
    def entries(self) -> list[Entry]:
        """The messages of the turn that are not retired, in order."""
        live = [block for block in self.blocks if not block.retired]
        found = [[block.entry, *(result for _, result in block.calls if result is not None)] for block in live]
        return [entry for entries in found for entry in entries] or [self.blocks[0].entry]

    @property
    def seconds(self) -> float | None:
        """Seconds from the first to the last message; None if they are not known."""
        entries = self.entries
        length = entries[-1].timestamp - entries[0].timestamp if self.is_whole else 0
        return length / 1000 if 0 < length < _DAY else None

    @property
    def tokens(self) -> int:
        """Tokens of the messages."""
        return sum(entry.tokens for entry in self.entries if entry.retired_by is None)

    @property
    def models(self) -> list[str]:
        """Names of the models that answered, in order."""
        return list(dict.fromkeys(call.model for call in reversed(self.calls)))

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts of all calls."""
        return sum(call.prompt_tokens for call in self.calls)

    @property
    def cached_share(self) -> float | None:
        """Share of the prompt tokens that came from the provider's cache."""
        return sum(call.cached_tokens for call in self.calls) / self.prompt_tokens if self.prompt_tokens else None


def group_turns(page: LogPage, calls: Sequence[ModelCall]) -> list[TurnGroup]:
    """Return the turns of a page.

    Args:
        page: the page.
        calls: model calls of these turns, newest first.
    """
    groups: list[TurnGroup] = []
    folds: list[Block] = []
    by_seq = {entry.seq: entry for entry in page.entries}
    for block in _fold_retired(join_results(page.entries), by_seq, page.end):
        if block.retired:
            folds.append(block)
            continue
        if not groups or groups[-1].turn_id != block.entry.turn_id:
            groups.append(TurnGroup(block.entry.turn_id))
        groups[-1].blocks += [*folds, block]
        folds = []
    if folds:
        groups.append(TurnGroup(folds[0].entry.turn_id, folds))
    for group in groups:
        group.calls = [call for call in calls if call.turn_id == group.turn_id]
    if groups:
        groups[0].is_whole = groups[0].is_whole and not page.is_cut[0]
        groups[-1].is_whole = groups[-1].is_whole and not page.is_cut[1]
    return groups


def join_results(entries: Sequence[Entry]) -> Iterator[Block]:
    """Yield the messages, each tool call together with its result."""
    results: dict[int, list[Entry]] = {}
    heads = {entry.seq for entry in entries if entry.kind == "calls"}
    for entry in entries:
        if entry.kind == "result" and entry.unit in heads:
            results.setdefault(entry.unit, []).append(entry)
    for entry in entries:
        if entry.kind == "calls":
            yield Block(entry, tuple(_match_results(entry, results.get(entry.seq, []))))
        elif entry.kind != "result" or entry.unit not in heads:
            yield Block(entry)


def _match_results(entry: Entry, results: list[Entry]) -> Iterator[tuple[ToolCall, Entry | None]]:
    """Yield the calls of a message with their results. Several calls may have the same id; their results are in the same order."""
    for call in entry.message.tool_calls:
        found = next((one for one in results if one.message.tool_call_id == call.id), None)
        if found is not None:
            results.remove(found)
        yield call, found


def _fold_retired(blocks: Iterable[Block], by_seq: Mapping[int, Entry], end: int) -> Iterator[Block]:
    """Yield the blocks, with successive retired ones that the same message replaced in one fold."""
    for replaced_by, found in groupby(blocks, key=lambda block: block.entry.replaced_by):
        if replaced_by is None:
            yield from found
        else:
            retired = tuple(found)
            reason = _find_reason(by_seq.get(replaced_by), is_last=replaced_by >= end)
            yield Block(retired[0].entry, retired=retired, reason=reason)


def _find_reason(replacement: Entry | None, *, is_last: bool) -> str:
    if replacement is None:
        return "by a rewind" if is_last else ""
    if (replacement.metadata or {}).get("interrupted"):
        return "by an interruption"
    return "by an edit" if replacement.kind == "user" else ""


def list_pieces(entry: Entry) -> Iterator[ContentPiece]:
    """Yield the pieces of an entry's content: texts, reasoning, media, and other parts."""
    message = entry.message
    for name in _REASONING_FIELDS:
        if isinstance(text := message.extra.get(name), str) and text:
            yield ContentPiece("reasoning", text)
            break
    if isinstance(message.content, str):
        if message.content:
            yield ContentPiece("text", message.content)
    elif isinstance(message.content, tuple):
        for index, part in enumerate(message.content):
            yield _make_piece(part, index)


def _make_piece(part: Part, index: int) -> ContentPiece:
    if part.text is not None:
        return ContentPiece("text", part.text, index)
    if part.type in REASONING_PARTS:
        text = part.extra.get("thinking")
        return ContentPiece("reasoning", text if isinstance(text, str) else "encrypted by the provider", index)
    if frames := get_frames(part):
        return ContentPiece("frames", len(frames), index)
    medium: Medium | None = find_medium(part.type, part.extra, part.held)
    if medium is not None:
        return ContentPiece("medium", medium, index)
    return ContentPiece("data", {"type": part.type, **part.extra}, index)


GLOBALS.update(to_json=to_entry_json, to_block=Block, get_child=get_child)
