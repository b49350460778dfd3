"""Marks for Anthropic's prompt cache.

A block with `cache_control` is called a mark here. According to the guide "Prompt caching", the provider caches the
prompt up to each mark, in the order tools, system, messages. There may be at most four marks. A later request reads the
longest cached prefix that it begins with, looking back from each of its own marks over at most 20 blocks. Marks are not
part of the cached content, so they may be placed differently in each request.

Two marks let every call read everything that the previous call cached, however many blocks were added. One is at the
end of the part of this prompt that the next prompt will begin with, the other is at the end of the previous prompt. Two
more marks stay valid when older messages leave the prompt. One is after system prompt and tools, the other is after the
first message, which is the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from holdfast.context.dialects import THINKING
from holdfast.context.fitting import CLOSING
from holdfast.context.recalled import is_recalled
from holdfast.domain.messages import Message

Block = dict[str, Any]
CACHE_MARKS: Final = 4
"""Maximum number of blocks with `cache_control` in a request."""
MARK: Final[Mapping[str, Any]] = {"type": "ephemeral"}
"""Value of `cache_control` that keeps the cached prefix for five minutes after it was last read."""
_LONG: Final = "1h"


def add_cache_marks(
    front: Sequence[Block],
    conversation: Sequence[Message],
    written: Sequence[list[Block]],
    cache: Mapping[str, Any] | None = MARK,
) -> None:
    """Put `cache_control` on the blocks of a request, in place.

    The API allows four marks. They are chosen in this order:

    1. the client's own marks in tools, system prompt and new messages;
    2. the two most important marks of Holdfast;
    3. the client's marks in earlier messages, which the log keeps from older requests;
    4. the other marks of Holdfast.

    Args:
        front: Tools, then the blocks of the system prompt.
        conversation: The messages.
        written: The blocks of each message.
        cache: Value of the marks. None: Holdfast adds no marks, and only the client's last four are kept.
    """
    stable = _count_stable(conversation)
    newest = _find_last(conversation[:stable], lambda message: message.role == "assistant") + 1
    earlier, new = ([*_list_blocks(groups)] for groups in (written[:newest], written[newest:]))
    chosen = _list_marked([*front, *new])[-CACHE_MARKS:]
    ours: list[Block] = []
    if cache is not None:
        recalled = max(0, _find_last(conversation, is_recalled))
        ends = (written[:stable], written[:recalled], written[: max(0, newest - 1)], [front], written[:1])
        ours = [block for groups in ends for block in _get_last_markable(chain.from_iterable(groups))]
    for block in [*ours[:2], *reversed(_list_marked(earlier)), *ours[2:]]:
        if len(chosen) < CACHE_MARKS and not any(block is other for other in chosen):
            chosen.append(block)
    kept = {id(block) for block in chosen}
    everything = [*front, *earlier, *new]
    for block in everything:
        if id(block) not in kept:
            block.pop("cache_control", None)
        elif not block.get("cache_control"):
            block["cache_control"] = dict(cache or MARK)
    _extend_marks(everything)


def _count_stable(conversation: Sequence[Message]) -> int:
    """Return the number of messages with which the next prompt will begin too, as long as no older messages leave the prompt.

    If the assistant spoke last, a dialect adds a user text at the end. This text is not counted, because the next
    prompt has the user's message instead. All other messages are counted.

    Recalled memories, which belong to one turn, are counted too. A call after a round of tools has them in the same place, but the next
    turn does not. So the message before them gets a mark of its own.
    """
    closed = bool(conversation) and conversation[-1].role == "user" and conversation[-1].content == CLOSING
    return len(conversation) - closed


def _find_last(conversation: Sequence[Message], matches: Callable[[Message], bool]) -> int:
    """Return the index of the last message that matches; -1 if there is none."""
    return next((at for at in range(len(conversation) - 1, -1, -1) if matches(conversation[at])), -1)


def _get_last_markable(blocks: Iterable[Block]) -> list[Block]:
    """Return a list with only the last block that may have a mark, or an empty list if no block may have a mark."""
    return [block for block in blocks if block.get("type") not in THINKING and not block.get("defer_loading")][-1:]


def _list_marked(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if block.get("cache_control")]


def _list_blocks(groups: Iterable[list[Block]]) -> Iterator[Block]:
    """Yield the blocks of messages. Those in the result of a tool come before the result itself."""
    for block in chain.from_iterable(groups):
        if block.get("type") == "tool_result":
            yield from block.get("content") or ()
        yield block


def _extend_marks(blocks: Sequence[Block]) -> None:
    """Change marks of five minutes to one hour if a later mark has one hour, because the API requires the longer marks to be first."""
    long = False
    for block in reversed(_list_marked(blocks)):
        long = long or block["cache_control"].get("ttl") == _LONG
        if long:
            block["cache_control"] = {**block["cache_control"], "ttl": _LONG}
