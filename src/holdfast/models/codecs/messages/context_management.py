"""Changes that a request wants in its conversation before a model gets it: edits and compaction.

Follows the API reference, "Context editing" and "Compaction". `clear_tool_uses_20250919` is served for every upstream by the option
`clear_tool_results` of Holdfast's strategies, whose keys have the same meaning. An Anthropic model gets the other edits, the field `compaction`
and compaction blocks unchanged. A block has the text of the summary in `content`, and in `signature` a reference; see
`holdfast.models.codecs.responses.ids`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.context.dialects import parse_thoughts
from holdfast.context.window import Window
from holdfast.domain.compaction import CompactionOrder
from holdfast.domain.messages import Message, Part
from holdfast.errors import InvalidRequest
from holdfast.numbers import check_whole

FIELD: Final = "context_management"
COMPACTION: Final = "compaction"
"""Name of the request field that asks for a summary, type of the blocks, and the stop reason of a reply that ends with one."""
_CLEAR_TOOL_USES: Final = "clear_tool_uses_20250919"
_CLEAR_THINKING: Final = "clear_thinking_20251015"
_COMPACT: Final = "compact_20260112"
SERVED_FOR_OTHERS: Final = frozenset({_COMPACT, _CLEAR_THINKING})
"""Edits that an Anthropic model gets, and that Holdfast serves for other models."""
_KEYS: Final[Mapping[str, frozenset[str]]] = {
    _CLEAR_TOOL_USES: frozenset({"trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs"}),
    _CLEAR_THINKING: frozenset({"keep"}),
    _COMPACT: frozenset({"trigger", "instructions", "pause_after_compaction"}),
    COMPACTION: frozenset({"instructions"}),
}
"""Keys of each edit and of the field `compaction`, next to `type`."""
_CLEARED_FROM: Final = 100_000
_COMPACTED_FROM: Final = 150_000
"""Anthropic's defaults of `trigger` for tool uses and for a compaction, in tokens."""
_KEEP: Final = 3
"""Anthropic's default of `keep`, in tool uses."""
_MOST: Final = 2**31


class ContextWishes(NamedTuple):
    """Changes that a request wants in its conversation before a model gets it."""

    clearing: dict[str, Any] | None = None
    """Options of `clear_tool_results`; None: the request does not clear tool uses."""
    others: Sequence[Any] = ()
    """Edits that an Anthropic model gets. Of these, Holdfast serves those in `SERVED_FOR_OTHERS` for other models."""
    compaction: CompactionOrder | None = None
    """When the conversation is to be compacted; None: never."""
    thinking: int | None = None
    """Number of newest turns whose reasoning stays; None: all."""
    has_edits: bool = False
    """True if the request has `context_management`."""


def decode_wishes(fields: Mapping[str, Any]) -> ContextWishes:
    """Decode the fields `context_management` and `compaction` of a request.

    Raises:
        InvalidRequest: A field is not valid, or both are there. The error names the place.
    """
    given = fields.get(FIELD)
    wishes = ContextWishes() if given is None else _decode_edits(given)
    wish = fields.get(COMPACTION)
    if wish is None:
        return wishes
    if not isinstance(wish, Mapping) or wish.get("type") != "summarize":
        raise InvalidRequest(f"{COMPACTION} must be an object with the type summarize", param=COMPACTION)
    _refuse_unknown(wish, COMPACTION, COMPACTION)
    summarize = CompactionOrder(prompt=_decode_instructions(wish, COMPACTION), is_alone=True, pauses=True)
    if wishes.compaction is not None or wishes.clearing is not None or wishes.others:
        message = f"{COMPACTION} and {FIELD} cannot be sent together: send one of them"
        raise InvalidRequest(message, param=COMPACTION)
    return wishes._replace(compaction=summarize)


def _decode_edits(given: Any) -> ContextWishes:
    edits = given.get("edits") if isinstance(given, Mapping) else None
    if not isinstance(edits, list):
        raise InvalidRequest(f"{FIELD} must be an object with a list of edits", param=FIELD)
    others: list[Any] = []
    wishes, seen = ContextWishes(others=others, has_edits=True), set[str]()
    for at, edit in enumerate(edits):
        where = f"{FIELD}.edits[{at}]"
        kind = edit.get("type") if isinstance(edit, Mapping) else None
        if not isinstance(kind, str):
            raise InvalidRequest(f"{where} must be an object with a type", param=where)
        if kind != _CLEAR_TOOL_USES:
            others.append(edit)
        if kind in _EDITS:
            if kind in seen:
                raise InvalidRequest(f"{where}: {kind} may appear only once", param=where)
            seen.add(kind)
            name, decode = _EDITS[kind]
            _refuse_unknown(edit, kind, where)
            wishes = wishes._replace(**{name: decode(edit, where)})
    return wishes


def _refuse_unknown(given: Mapping[str, Any], kind: str, where: str) -> None:
    if unknown := sorted(given.keys() - _KEYS[kind] - {"type"}):
        raise InvalidRequest(f"{where} has the unknown key {unknown[0]!r:.80}", param=where)


def _decode_thinking(edit: Mapping[str, Any], where: str) -> int | None:
    """Return the number of newest turns whose reasoning stays; None for all."""
    keep = edit.get("keep")
    if keep == "all" or (isinstance(keep, Mapping) and keep.get("type") == "all"):
        return None
    return _decode_amount(edit, "keep", ("thinking_turns",), where, least=1)[1] or 1


def _decode_clearing(edit: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind, value = _decode_amount(edit, "trigger", ("input_tokens", "tool_uses"), where)
    if kind is None:
        options: dict[str, Any] = {"trigger": _CLEARED_FROM}
    else:
        options = {"trigger" if kind == "input_tokens" else "trigger_uses": max(1, value or 0)}
    _, keep = _decode_amount(edit, "keep", ("tool_uses",), where)
    _, least = _decode_amount(edit, "clear_at_least", ("input_tokens",), where)
    options |= {"keep": _KEEP if keep is None else keep, "clear_at_least": least or 0}
    options["exclude_tools"] = _decode_names(edit, "exclude_tools", where)
    inputs = edit.get("clear_tool_inputs")
    if isinstance(inputs, bool):
        options["clear_tool_inputs"] = inputs
    elif inputs is not None:
        options["clear_inputs_of"] = _decode_names(edit, "clear_tool_inputs", where)
    return options


def _decode_compaction(edit: Mapping[str, Any], where: str) -> CompactionOrder:
    _, trigger = _decode_amount(edit, "trigger", ("input_tokens",), where, least=1)
    pauses = edit.get("pause_after_compaction")
    if not isinstance(pauses, bool | None):
        message = f"{where}.pause_after_compaction must be true or false"
        raise InvalidRequest(message, param=f"{where}.pause_after_compaction")
    prompt = _decode_instructions(edit, where)
    return CompactionOrder(threshold=trigger or _COMPACTED_FROM, prompt=prompt, pauses=bool(pauses))


def _decode_instructions(given: Mapping[str, Any], where: str) -> str | None:
    text = given.get("instructions")
    if not isinstance(text, str | None):
        raise InvalidRequest(f"{where}.instructions must be a string", param=f"{where}.instructions")
    return text if text and text.strip() else None


_EDITS: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any], str], Any]]]] = {
    _CLEAR_TOOL_USES: ("clearing", _decode_clearing),
    _CLEAR_THINKING: ("thinking", _decode_thinking),
    _COMPACT: ("compaction", _decode_compaction),
}
"""For each edit that Holdfast knows, the wish that it becomes, and its decoder."""


def _decode_amount(
    edit: Mapping[str, Any], name: str, kinds: tuple[str, ...], where: str, *, least: int = 0
) -> tuple[str | None, int | None]:
    """Return the type and the value of an amount such as `{type: tool_uses, value: 3}`; twice None if it is missing."""
    given, place = edit.get(name), f"{where}.{name}"
    if given is None:
        return None, None
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind not in kinds:
        raise InvalidRequest(f"{place} must be an object with type {' or '.join(kinds)} and a value", param=place)
    check_whole(given.get("value"), f"{place}.value", least, _MOST)
    return kind, given["value"]


def _decode_names(edit: Mapping[str, Any], name: str, where: str) -> list[str]:
    names = edit.get(name) or []
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise InvalidRequest(f"{where}.{name} must be a list of tool names", param=f"{where}.{name}")
    return names


def report_edits(window: Window | None) -> dict[str, Any]:
    """Return the field `context_management` of a reply: what was cleared in its prompt."""
    uses = tokens = thinking_tokens = 0
    turns: set[int] = set()
    for unit in () if window is None else (*window.head, *window.units):
        for entry in unit.entries:
            cut = window.cuts.get(entry.seq) if window is not None else None
            if cut is None or not cut.cleared:
                continue
            freed = max(0, entry.tokens - cut.tokens)
            if parse_thoughts(entry.message) and not parse_thoughts(cut.message):
                turns.add(entry.turn_id)
                thinking_tokens += freed
            else:
                uses += entry.message.role == "tool"
                tokens += freed
    thinking = {"cleared_thinking_turns": len(turns), "cleared_input_tokens": thinking_tokens}
    applied: list[dict[str, Any]] = [{"type": _CLEAR_THINKING, **thinking}] if turns else []
    if uses:
        applied.append({"type": _CLEAR_TOOL_USES, "cleared_tool_uses": uses, "cleared_input_tokens": tokens})
    return {"applied_edits": applied}


# -- compaction blocks ---------------------------------------------------------------


class FoundBlock(NamedTuple):
    """The newest compaction block of a request."""

    text: str
    signature: str | None
    after: list[Message]
    """The messages after the block, beginning with the rest of its own message."""


def has_blocks(messages: Sequence[Message]) -> bool:
    """Return True if a message has a compaction block."""
    return any(map(_is_block, (part for message in messages for part in message.media)))


def find_block(messages: Sequence[Message]) -> FoundBlock | None:
    """Return the newest compaction block that has a text; None if there is none."""
    for at in range(len(messages) - 1, -1, -1):
        content = messages[at].content
        parts = content if isinstance(content, tuple) else ()
        for number in range(len(parts) - 1, -1, -1):
            text, signature = (parts[number].extra.get(name) for name in ("content", "signature"))
            if _is_block(parts[number]) and isinstance(text, str) and text:
                rest = _with_parts(messages[at], parts[number + 1 :])
                after = [rest] if rest.content is not None or rest.tool_calls else []
                after += drop_blocks(messages[at + 1 :])
                return FoundBlock(text, signature if isinstance(signature, str) else None, after)
    return None


def drop_blocks(messages: Sequence[Message]) -> list[Message]:
    """Return messages without compaction blocks. A message with nothing else is left out."""
    made = []
    for message in messages:
        if isinstance(message.content, tuple) and any(map(_is_block, message.content)):
            message = _with_parts(message, [part for part in message.content if not _is_block(part)])  # noqa: PLW2901
            if message.content is None and not message.tool_calls:
                continue
        made.append(message)
    return made


def _is_block(part: Part) -> bool:
    return part.type == COMPACTION


def _with_parts(message: Message, parts: Sequence[Part]) -> Message:
    """Return a message with these parts as its content: one text if they are nothing else, None if there are none."""
    if all(part.type == "text" and not part.extra for part in parts):
        return message.evolve(content="".join(part.text or "" for part in parts) or None)
    return message.evolve(content=tuple(parts))


def make_block(text: str | None, signature: str) -> dict[str, Any]:
    """Return a compaction block."""
    return {"type": COMPACTION, "content": text, "encrypted_content": None, "signature": signature}


def make_iterations(compaction: Mapping[str, Any], message: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return `usage.iterations`: the usage of the compaction, and of the message if a model answered. Both are in Anthropic's format."""
    listed = [(COMPACTION, compaction), *([] if message is None else [("message", message)])]
    zero = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    names = ("input_tokens", "output_tokens", "cache_creation", *zero)
    return [
        {"type": kind, **zero, **{name: usage[name] for name in names if usage.get(name) is not None}}
        for kind, usage in listed
    ]
