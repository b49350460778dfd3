"""Counts of turns, model calls and tokens over time, and how they are encoded for a store.

Counts are kept per step of time: five minutes for the last days, one hour for the last weeks. The steps of a day or a week form one block,
which a store keeps under one name. A later block with the same name replaces the earlier one, so the names of a resolution never grow in
number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Self

import msgspec

from holdfast.domain.objects import Count

CACHE_READ, CACHE_WRITE, CACHE_LEAST = 0.1, 1.25, 1024
"""Assumptions about a provider's prompt cache: the price of a token that is read from the cache, the price of any other prompt token, and
the minimum tokens of a prefix that is cached. Prices are multiples of the price of an input token.
"""
SUMMARY_READ, SUMMARY_WRITTEN = 1.0, 5.0
"""Price of a token that a summarizer reads, which is never cached, and price of a token that it writes. Prices are multiples of the price
of an input token.
"""
_MINUTE: Final = 60_000
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


class ActivityFigures(msgspec.Struct, gc=False):
    """Counts of turns, model calls and tokens. Tokens of prompts are counted by Holdfast."""

    turns: Count = 0
    """Turns that began, as in `turns` of a session: a request that only brings results of tools continues its turn."""
    failed_turns: Count = 0
    """Requests that ended with an error, or with an agent's failure message, also if they continued a turn."""
    calls: Count = 0
    """Model calls that were answered."""
    failed_calls: Count = 0
    """Model calls that failed. If a fallback answers, the turn does not fail."""
    sent_tokens: Count = 0
    """Tokens of the prompts that were sent."""
    full_tokens: Count = 0
    """Tokens of the prompts if each one had contained the session's whole log."""
    measured_tokens: Count = 0
    """Tokens of `sent_tokens` in calls whose provider reported its usage."""
    cached_tokens: Count = 0
    """Tokens of `measured_tokens` that the provider read from its cache."""
    completion_tokens: Count = 0
    """Tokens of replies, as reported by the provider."""
    summary_read_tokens: Count = 0
    """Tokens that models read to write summaries."""
    summary_written_tokens: Count = 0
    """Tokens that models wrote as summaries."""


class ActivityCounts(ActivityFigures, gc=False, array_like=True):
    """Counts of one step of time, or sums of several."""

    full_cached_tokens: int = 0
    """Tokens of `full_tokens` that the provider would have read from its cache."""

    def add(self, other: ActivityCounts) -> None:
        """Add the counts of `other` to these."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @classmethod
    def sum_up(cls, parts: Iterable[ActivityCounts]) -> Self:
        """Return the sums of several counts."""
        whole = cls()
        for part in parts:
            whole.add(part)
        return whole

    @property
    def cost(self) -> float:
        """Cost of the prompts and summaries, as a multiple of the price of an input token."""
        summaries = compute_summary_cost(self.summary_read_tokens, self.summary_written_tokens)
        return compute_prompt_cost(self.sent_tokens, self.cached_tokens) + summaries

    @property
    def full_cost(self) -> float:
        """Cost of the prompts if each one had contained the session's whole log."""
        return compute_prompt_cost(self.full_tokens, self.full_cached_tokens)


def compute_prompt_cost(tokens: int, cached: int) -> float:
    """Return the cost of prompts of which `cached` tokens are read from the cache, as a multiple of the price of an input token."""
    return CACHE_READ * cached + CACHE_WRITE * (tokens - cached)


def compute_summary_cost(read: int, written: int) -> float:
    """Return the cost of summaries by the tokens that a summarizer reads and writes, as a multiple of the price of an input token."""
    return SUMMARY_READ * read + SUMMARY_WRITTEN * written


class Resolution(NamedTuple):
    """The length of steps, and for how long they are kept. Times are in milliseconds."""

    name: str
    step: int
    block: int
    """Time that one block covers."""
    blocks: int
    """Number of blocks that are kept."""

    @property
    def kept(self) -> int:
        """Time for which counts are kept at least."""
        return self.block * (self.blocks - 1)

    def number_block(self, at: int) -> int:
        """Return the number of the block of a time. Blocks are numbered from the epoch."""
        return at // self.block

    def name_block(self, number: int) -> str:
        """Return the name under which a store keeps a block."""
        return f"holdfast:activity:{self.name}:{number % self.blocks}"


FINE: Final = Resolution("fine", 5 * _MINUTE, _DAY, 3)
HOURLY: Final = Resolution("hourly", _HOUR, 7 * _DAY, 6)
RESOLUTIONS: Final = (FINE, HOURLY)
Steps = dict[int, ActivityCounts]
"""Counts by the time at which their step begins, in milliseconds since the epoch."""


def add_steps(steps: Steps, more: Mapping[int, ActivityCounts], step: int) -> None:
    """Add the counts in `more` to `steps`, whose steps are `step` milliseconds long."""
    for at, counts in more.items():
        begin = at - at % step
        if (known := steps.get(begin)) is None:
            known = steps[begin] = ActivityCounts()
        known.add(counts)


class _Block(msgspec.Struct, array_like=True):
    number: int
    steps: dict[int, ActivityCounts]


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(_Block)


def read_block(data: bytes | None, number: int) -> Steps:
    """Return the counts in a stored block; none if there is no such block, another block has its name, or it cannot be read."""
    block = _decode(data)
    return block.steps if block is not None and block.number == number else {}


def merge_block(data: bytes | None, number: int, steps: Mapping[int, ActivityCounts], step: int) -> bytes | None:
    """Return the encoded block that results from adding counts to a stored block.

    Args:
        data: the stored block of that name; None if there is none.
        number: number of the block to which the counts belong.
        steps: the counts.
        step: length of the steps in milliseconds.

    Returns:
        The block; None if the stored block is a later one, so that the counts are too old to be kept.
    """
    block = _decode(data)
    if block is not None and block.number > number:
        return None
    sums = read_block(data, number)
    add_steps(sums, steps, step)
    return _encode(_Block(number, sums))


def _decode(data: bytes | None) -> _Block | None:
    if data is None:
        return None
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:  # written by another version
        return None


class ActivityPoint(msgspec.Struct, frozen=True):
    """The counts of one step of a series."""

    start: int
    """Time at which the step begins, in milliseconds since the epoch."""
    counts: ActivityCounts


def make_series(steps: Mapping[int, ActivityCounts], since: int, until: int, step: int) -> Sequence[ActivityPoint]:
    """Return one point for every step from `since` up to `until`. Steps without counts have zeros."""
    sums: Steps = {}
    first = since - since % step
    add_steps(sums, {at: counts for at, counts in steps.items() if first <= at < until}, step)
    return [ActivityPoint(at, sums.get(at) or ActivityCounts()) for at in range(first, until, step)]
