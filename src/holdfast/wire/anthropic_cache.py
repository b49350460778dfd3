"""Where a request to Anthropic's Messages API is cut for its prompt cache. Decisions only.

By the guide "Prompt caching": a prompt is cached up to each block that bears `cache_control`, at most four of them, in the order
tools, system, messages. A later request reads the longest of these that it begins with, looking back from each of its own
marks over at most 20 blocks. A mark is no part of what is cached, so it may stand elsewhere in each request.

Two marks make every call read all that the call before wrote, however many blocks were added: one at the end of the part of
this prompt that the next one begins with, one at the end of the prompt before. The other two outlive a step of the frontier:
one behind system prompt and tools, one behind the first message, which is the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.context.dialects import CLOSING
from holdfast.context.reasoning import THINKING
from holdfast.context.recalled import is_recalled
from holdfast.domain.messages import Message

Block = dict[str, Any]
CACHE_MARKS: Final = 4
"""Blocks with `cache_control` that a request may have."""
MARK: Final[Mapping[str, Any]] = {"type": "ephemeral"}
"""For five minutes from the last read."""
_LONG: Final = "1h"


def mark(
    front: Sequence[Block],
    conversation: Sequence[Message],
    written: Sequence[list[Block]],
    cache: Mapping[str, Any] | None = MARK,
) -> None:
    """Put `cache_control` on the blocks of a request, in place.

    A client's own marks in tools, system prompt and what is new stay before any of ours. Those further back, which a log keeps
    from older requests, fill what the two marks that matter most leave.

    Args:
        front: tools, then the blocks of the system prompt.
        conversation: the messages.
        written: the blocks of each message.
        cache: what a mark says; None: none is added, and of the client's the last four stay.
    """
    newest = _behind_last_reply(conversation)
    blocks = [[inner for block in group for inner in (*_nested(block), block)] for group in written]
    current = _marked([*front, *(block for group in blocks[newest:] for block in group)])
    older = _marked([block for group in blocks[:newest] for block in group])
    chosen = current[-CACHE_MARKS:]
    ours = [] if cache is None else list(_ends(front, conversation, written, newest))
    for block in [*ours[:2], *reversed(older), *ours[2:]]:
        if len(chosen) < CACHE_MARKS and not any(block is other for other in chosen):
            chosen.append(block)
    kept = {id(block) for block in chosen}
    everything = [*front, *(block for group in blocks for block in group)]
    for block in everything:
        if id(block) not in kept:
            block.pop("cache_control", None)
        elif not block.get("cache_control"):
            block["cache_control"] = dict(cache or MARK)
    _in_order(everything)


def stable(conversation: Sequence[Message]) -> int:
    """How many of the messages the next prompt begins with, as long as the frontier stays.

    All but the word of the user that a dialect wants at the end where the assistant spoke last: the next prompt has what was
    said instead. What is recalled is of one turn: a call after a round of tools begins with it, the next turn does not; for
    that there is a mark of its own, see `_ends`.
    """
    closed = bool(conversation) and conversation[-1].role == "user" and conversation[-1].content == CLOSING
    return len(conversation) - closed


def _ends(
    front: Sequence[Block], conversation: Sequence[Message], written: Sequence[list[Block]], newest: int
) -> Iterator[Block]:
    """The blocks that a mark is worth most on, the best first."""
    yield from _last(block for group in written[: stable(conversation)] for block in group)
    yield from _last(block for group in written[: _recalled_at(conversation)] for block in group)
    yield from _last(block for group in written[: max(0, newest - 1)] for block in group)
    yield from _last(front)
    yield from _last(written[0] if written else ())


def _recalled_at(conversation: Sequence[Message]) -> int:
    """Where what is recalled for this turn alone stands; 0: nothing is."""
    return next((at for at in range(len(conversation) - 1, -1, -1) if is_recalled(conversation[at])), 0)


def _behind_last_reply(conversation: Sequence[Message]) -> int:
    """Where what the last reply was followed by begins."""
    until = stable(conversation)
    return next((at + 1 for at in range(until - 1, -1, -1) if conversation[at].role == "assistant"), 0)


def _last(blocks: Iterator[Block] | Sequence[Block]) -> list[Block]:
    """The last one that may bear a mark; none where there is none."""
    return [block for block in blocks if block.get("type") not in THINKING and not block.get("defer_loading")][-1:]


def _marked(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if block.get("cache_control")]


def _nested(block: Block) -> list[Block]:
    return block.get("content") or [] if block.get("type") == "tool_result" else []


def _in_order(blocks: Sequence[Block]) -> None:
    """No mark for an hour may come behind one for five minutes: then that one is for an hour, too."""
    long = False
    for block in reversed(_marked(blocks)):
        long = long or block["cache_control"].get("ttl") == _LONG
        if long:
            block["cache_control"] = {**block["cache_control"], "ttl": _LONG}
