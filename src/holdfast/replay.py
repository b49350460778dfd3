"""Replay: recorded sessions played through policies, no model needed, and what that says about the policies.

For each recorded assistant message the working set that the model would have got is built from what came before it.
What the recorded agent then did tells what it needed: the *argument recall* is the share of the values it used in its
tool calls, of those that occur verbatim in earlier messages, that are still in the working set. The *bound recall* asks
more: a value that first came from a tool result has to stand with what it belongs to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from holdfast.context.build import PRIMING, Request, WorkingSet, build
from holdfast.context.policies import Policy, policy
from holdfast.context.settings import STRATEGIES, ContextSettings, parse
from holdfast.context.view import ViewState
from holdfast.errors import BudgetTooSmall, InvalidMessage, InvalidRequest
from holdfast.messages import Message, ToolCall
from holdfast.session import Entry, NewEntry, Tail, extend
from holdfast.tokens import STORED, TokenCounter
from holdfast.wire.openai import split_system
from holdfast.wire.transcripts import BadLine, Recording, recordings

CACHE_READ, CACHE_WRITE, CACHE_LEAST = 0.1, 1.25, 1024
"""Price of a cached and of a fresh prompt token, in input tokens; shortest prefix that a provider caches, in tokens."""
UNLIMITED = 10**9
"""Tokens of the model's window: only the strategy's budget counts here."""


class Result(msgspec.Struct, frozen=True):
    """How one strategy did at one budget. Shares are from 0 to 1; `recall` is None where no call used a known value."""

    strategy: str
    budget: int
    calls: int
    refused: int
    tokens_per_call: float
    recall: float | None
    bound: float | None
    cached: float
    cost_per_call: float
    orphans: float
    tasks_lost: float
    build_ms: float


class Tally:
    """Sums over the calls of one run."""

    def __init__(self) -> None:
        self.calls = self.refused = self.orphans = self.tasks_lost = 0
        self.tokens = self.cached = self.used = self.found = self.bound = 0
        self.cost = self.seconds = 0.0

    def result(self, name: str, budget: int) -> Result:
        """The sums as shares and means."""
        sent = max(1, self.calls - self.refused)
        return Result(
            strategy=name,
            budget=budget,
            calls=self.calls,
            refused=self.refused,
            tokens_per_call=round(self.tokens / sent, 1),
            recall=round(self.found / self.used, 4) if self.used else None,
            bound=round(self.bound / self.used, 4) if self.used else None,
            cached=round(self.cached / max(1, self.tokens), 4),
            cost_per_call=round(self.cost / sent, 1),
            orphans=round(self.orphans / sent, 4),
            tasks_lost=round(self.tasks_lost / sent, 4),
            build_ms=round(self.seconds / sent * 1000, 4),
        )


def read(paths: Iterable[Path], *, skip_bad: bool, on_bad: Callable[[BadLine], None]) -> list[Recording]:
    """The recordings in some JSONL files.

    Args:
        paths: the files, in order.
        skip_bad: go on behind a bad line; otherwise the first one raises.
        on_bad: told of each bad line that is skipped.

    Raises:
        InvalidMessage: a bad line, named by file and number.
        InvalidRequest: a file that cannot be read.
    """
    found = []
    for path in paths:
        try:
            with path.open("rb") as file:
                for item in recordings(file, str(path)):
                    if isinstance(item, Recording):
                        found.append(item)
                    elif skip_bad:
                        on_bad(item)
                    else:
                        raise InvalidMessage(f"{item} (--skip-bad goes on behind it)")
        except OSError as exc:
            raise InvalidRequest(f"{path}: {exc.strerror or exc}", param="FILE") from exc
    return found


def chained(sessions: Sequence[Recording]) -> list[Recording]:
    """All sessions as one long one, under the first one's system prompt."""
    if not sessions:
        return []
    messages = [*split_system(sessions[0].messages)[0]]
    for session in sessions:
        messages += split_system(session.messages)[1]
    return [Recording("chain", tuple(messages))]


def settings_for(name: str, budget: int) -> ContextSettings:
    """A strategy's defaults with `budget`, where it takes one. Raises `InvalidRequest` for an unknown strategy."""
    takes = name in STRATEGIES and "budget" in STRATEGIES[name].keys
    return parse({"strategy": name, **({"budget": budget} if takes else {})}, where="--strategy")


def play(sessions: Sequence[Recording], name: str, budget: int, *, on_session: Callable[[], None]) -> Result:
    """Play `sessions` through one strategy at one budget.

    Args:
        sessions: what to play.
        name: the strategy.
        budget: tokens of the conversation, the system prompt not counted; what a strategy without a budget of its
            own cannot keep is refused where it is over, for `none`, and ignored for count windows.
        on_session: called after each session: progress.
    """
    tally, rule = Tally(), policy(settings_for(name, budget))
    for session in sessions:
        _play_one(session, rule, budget, tally)
        on_session()
    return tally.result(name, budget)


# -- one session -------------------------------------------------------------


class _Player:
    """A session's log so far and a view of it, in memory: what a store would hold."""

    def __init__(self, rule: Policy, budget: int, system: tuple[Message, ...]) -> None:
        self.count: TokenCounter = STORED
        overhead = PRIMING + sum(self.count.message(message) for message in system)
        window = budget + overhead if rule.name == "none" else UNLIMITED
        self.request = Request(policy=rule, count=self.count, input_budget=window, system=system)
        self.entries: list[Entry] = []
        self.tail = Tail()
        self.state: ViewState | None = None

    def append(self, message: Message) -> None:
        new = NewEntry(message=message, tokens=self.count.message(message), timestamp=0)
        entries, self.tail = extend(self.tail, [new])
        self.entries += entries

    def build(self) -> WorkingSet:
        frontier = self.state.frontier if self.state else 0
        kept = [self.entries[seq] for seq in self.state.keep] if self.state else []
        built = build(self.request, self.state, kept, self.entries[frontier:])
        self.state = built.state
        return built


def _play_one(session: Recording, rule: Policy, budget: int, tally: Tally) -> None:
    system, messages = split_system(session.messages)
    player = _Player(rule, budget, system)
    task = next((message for message in messages if message.role == "user"), None)
    before: tuple[Message, ...] = ()
    said = _Said()
    for message in messages:
        if message.role == "assistant" and player.entries:
            before = _call(player, message, task, before, said, tally=tally)
        player.append(message)
        said.add(message)


def _call(
    player: _Player,
    recorded: Message,
    task: Message | None,
    before: tuple[Message, ...],
    said: _Said,
    *,
    tally: Tally,
) -> tuple[Message, ...]:
    """Build for one recorded call and add to the sums; the prompt, for the next call's common prefix."""
    tally.calls += 1
    used = {value: origin for value in values_of(recorded) if (origin := said.origin(value)) is not None}
    tally.used += len(used)
    started = time.perf_counter()
    try:
        built = player.build()
    except BudgetTooSmall:
        tally.refused += 1
        return before
    tally.seconds += time.perf_counter() - started
    conversation = built.messages[len(player.request.system) :]
    blocks = _blocks(built, conversation)
    tally.found += sum(any(value in block for block in blocks) for value in used)
    tally.bound += sum(_is_bound(value, origin, blocks) for value, origin in used.items())
    tally.tokens += built.total_tokens
    cached = _cached(before, built.messages, player.count)
    tally.cached += cached
    tally.cost += CACHE_READ * cached + CACHE_WRITE * (built.total_tokens - cached)
    tally.orphans += has_orphan(conversation)
    tally.tasks_lost += not has_task(conversation, task)
    return built.messages


def _cached(before: Sequence[Message], now: Sequence[Message], count: TokenCounter) -> int:
    """Tokens of the longest common prefix with the previous prompt, as a provider's cache would have them."""
    common = 0
    for old, new in zip(before, now, strict=False):
        if old is not new and old != new:
            break
        common += count.message(new)
    return common if common >= CACHE_LEAST else 0


# -- what is looked for ------------------------------------------------------


class _Said:
    """What a session said so far, and where a value first came from."""

    def __init__(self) -> None:
        self._texts: list[tuple[str, tuple[str, ...]]] = []
        self._calls: dict[str, tuple[str, ...]] = {}

    def add(self, message: Message) -> None:
        for call in message.tool_calls:
            self._calls[call.id] = tuple(value for value in _arguments(call) if isinstance(value, str) and value)
        belongs = self._calls.get(str(message.tool_call_id), ()) if message.role == "tool" else ()
        self._texts.append((_haystack(message), belongs))

    def origin(self, value: str) -> tuple[str, ...] | None:
        """The string arguments of the call whose result first held `value`; None where it was never said.

        Empty where it was first said in conversation, or the call had none.
        """
        return next((belongs for text, belongs in self._texts if value in text), None)


def _blocks(built: WorkingSet, conversation: Sequence[Message]) -> list[str]:
    """What counts as standing together: a unit, or one line of a compaction."""
    compaction = built.window.compaction
    blocks: list[str] = []
    for message in conversation:
        if compaction is not None and message.content == compaction.text:
            blocks += compaction.text.splitlines()
        elif message.role == "tool" and blocks:
            blocks[-1] += "\n" + _haystack(message)
        else:
            blocks.append(_haystack(message))
    return blocks


def _is_bound(value: str, origin: tuple[str, ...], blocks: Sequence[str]) -> bool:
    """Whether `value` stands there, and with one of the arguments it was found by if it was found by any."""
    holding = (block for block in blocks if value in block)
    return any(not origin or any(argument in block for argument in origin) for block in holding)


def values_of(message: Message) -> list[str]:
    """The distinct argument values of a message's tool calls: strings of 4 or more characters, numbers of 4 or more digits."""
    found: dict[str, None] = {}
    for call in message.tool_calls:
        for value in _arguments(call):
            if len(value if isinstance(value, str) else "".join(filter(str.isdigit, str(value)))) >= 4:
                found[str(value)] = None
    return list(found)


def _arguments(call: ToolCall) -> Iterator[str | int | float]:
    """The scalars in a call's arguments; nothing where they are no JSON."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    yield from _scalars(arguments)


def _scalars(value: Any) -> Iterator[str | int | float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _scalars(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _haystack(message: Message) -> str:
    return "\n".join((message.text, *(call.arguments for call in message.tool_calls)))


def has_orphan(messages: Sequence[Message]) -> bool:
    """Whether a call lacks its result, or a result its call, directly behind each other."""
    open_calls: set[str] = set()
    for before, message in pairwise((Message(role="user"), *messages, Message(role="user"))):
        if message.role == "tool":
            if (before.role != "tool" and not before.tool_calls) or message.tool_call_id not in open_calls:
                return True
            open_calls.discard(str(message.tool_call_id))
        elif open_calls:
            return True
        else:
            open_calls = {call.id for call in message.tool_calls}
    return False


def has_task(messages: Sequence[Message], task: Message | None) -> bool:
    """Whether the task is there: the first user message, whole or as a marked stub of it."""
    if task is None:
        return True
    opening = task.text[:40]
    return any(message.role == "user" and opening in message.text for message in messages)
