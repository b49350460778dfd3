"""Collect the deltas of a reply to a completion, and split a completion into chunks, without loss.

Fields that deltas have no types for are merged by these rules:

- Strings are joined, except names, ids and others in `KEPT`, whose first value is kept.
- Lists are extended. Items with the same `index` and type are merged.
- Objects are merged field by field.
- Any other value is replaced by the newest value that is not null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.domain.messages import Message
from holdfast.errors import InvalidMessage, ModelProtocolError, ModelReplyTooLarge
from holdfast.limits import MODEL_REPLY_BYTES, MODEL_REPLY_PARTS
from holdfast.log.items import CallArguments, CallStart, Delta, Finish, Head, Opaque, Reasoning, Text, Usage
from holdfast.numbers import is_whole
from holdfast.wire.openai import parse_message

KEPT: Final = frozenset({"id", "type", "role", "name", "index", "format", "url", "title"})
"""Fields of a delta whose strings are not sent in pieces. Some providers repeat them in each delta, so only the first value is kept."""
STREAM_ONLY: Final = frozenset({"object", "obfuscation"})
"""Fields of a chunk that are left out of the completion: what the chunk is, and padding against traffic analysis."""
_PIECES_JOINED: Final = 1_024
_PIECE_BYTES: Final = 16
"""Bytes that each piece of a text counts in addition to the text."""
_encode = msgspec.json.Encoder(enc_hook=str).encode
WORDS: Final = re.compile(r"\s*\S+\s*|\s+")


def to_chunks(completion: dict[str, Any], *, by_word: bool = False) -> Iterator[dict[str, Any]]:
    """Convert a completion to the chunks of a stream. `Collector` makes the same completion of them.

    Args:
        completion: The `chat.completion`.
        by_word: True to yield each word of the content and of tool arguments as a chunk of its own.
    """
    head = {key: value for key, value in completion.items() if key not in ("choices", "usage", "object")}
    head["object"] = "chat.completion.chunk"
    for choice in completion.get("choices") or ():
        rest = {key: value for key, value in choice.items() if key not in ("message", "delta")}
        index = rest.setdefault("index", 0)
        for delta in _split_message(choice.get("message") or {}, by_word=by_word):
            yield head | {"choices": [{"index": index, "delta": delta, "finish_reason": None}]}
        yield head | {"choices": [{"finish_reason": None} | rest | {"delta": {}}]}
    if "usage" in completion:
        yield head | {"choices": [], "usage": completion["usage"]}


def _split_message(message: dict[str, Any], *, by_word: bool) -> Iterator[dict[str, Any]]:
    """Yield the deltas of a message. Tool calls get an `index`, by which a client joins their deltas."""
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        calls = [{"index": at} | call | {"index": at} for at, call in enumerate(calls) if isinstance(call, dict)]
        message = message | {"tool_calls": calls}
    if not by_word:
        yield message
        return
    content = message.get("content")
    words = WORDS.findall(content) if isinstance(content, str) else []
    yield {key: value for key, value in message.items() if key != "tool_calls"} | ({"content": ""} if words else {})
    yield from ({"content": word} for word in words)
    for call in calls or ():
        yield from _split_call(call)


def _split_call(call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        yield {"tool_calls": [call]}
        return
    yield {"tool_calls": [call | {"function": function | {"arguments": ""}}]}
    for word in WORDS.findall(function["arguments"]):
        yield {"tool_calls": [{"index": call["index"], "function": {"arguments": word}}]}


class Collector:
    """Joins deltas to a completion, and can return the partial completion at any time.

    The cost of adding a delta depends only on its size.

    Attributes:
        finished: True if there is at least one choice and every choice has a finish reason.
        usage: The newest token usage, or None.
    """

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self._size = 0
        self.finished = False
        self.usage: dict[str, Any] | None = None

    def add(self, deltas: Sequence[Delta]) -> None:
        """Add the deltas of one event.

        Raises:
            ModelReplyTooLarge: The reply would exceed `MODEL_REPLY_BYTES` or `MODEL_REPLY_PARTS`. The rest of the deltas is not added.
        """
        for delta in deltas:
            if isinstance(delta, (Text, Reasoning)):
                self._size += len(delta.text.encode(errors="replace")) + _PIECE_BYTES
                if self._size > MODEL_REPLY_BYTES:
                    self._grow(0)
                message = (self._choices.get(delta.choice) or self._open(delta.choice)).message
                name = "content" if isinstance(delta, Text) else delta.name
                known = message.get(name)
                if isinstance(known, _Pieces):
                    known.latest.append(delta.text)  # not by a method, because this happens for each token
                    if len(known.latest) >= _PIECES_JOINED:
                        known.join()
                else:
                    _merge_field(message, name, delta.text)
            else:
                self._add_other(delta)

    def _add_other(self, delta: Delta) -> None:
        """Add a delta that is neither text nor reasoning."""
        if isinstance(delta, CallStart | CallArguments):
            self._grow(len(_encode(delta)))
            self._open(delta.choice).add_call(delta)
            self._check_parts()
        elif isinstance(delta, Usage):
            self.usage = delta.numbers
        elif isinstance(delta, Finish):
            self._open(delta.choice).finish(delta)
            self.finished = all(one.fields["finish_reason"] is not None for one in self._choices.values())
        elif isinstance(delta, Head):
            self._add_head(delta.fields)
        elif isinstance(delta, Opaque):
            self._add_opaque(delta)

    def _add_head(self, fields: Mapping[str, Any]) -> None:
        """Set fields of the completion. The newest value counts, except that `id`, `created` and `model` keep their first value.

        The first chunk from Azure has an empty `id` and `model`.
        """
        kept = {name for name in ("id", "created", "model") if self._head.get(name)}
        self._head |= {name: value for name, value in fields.items() if name not in kept}

    def _add_opaque(self, delta: Opaque) -> None:
        if delta.choice is None:
            if delta.name not in STREAM_ONLY:
                self._head[delta.name] = delta.value
        elif delta.in_message:
            self._grow(len(_encode(delta.value)) + len(delta.name))
            _merge_field(self._open(delta.choice).message, delta.name, delta.value)
            if isinstance(delta.value, list):
                self._check_parts()
        else:
            _merge_field(self._open(delta.choice).fields, delta.name, delta.value, growing=False)

    @property
    def has_begun(self) -> bool:
        """True if a choice has arrived."""
        return bool(self._choices)

    @property
    def model(self) -> Any:
        """Name of the model, as the upstream reports it, or None."""
        return self._head.get("model")

    @property
    def finish_reason(self) -> Any:
        """The reason for which the first choice ended, or None."""
        return self._choices[min(self._choices)].fields["finish_reason"] if self._choices else None

    def build_message(self, *, calls: bool = True) -> Message:
        """Return the message of the first choice, as far as it has arrived.

        Args:
            calls: False to leave out tool calls, because the last one may be incomplete.

        Raises:
            ModelProtocolError: No choice arrived, or its message is invalid.
        """
        if not self._choices:
            raise ModelProtocolError("the model's stream ended without an answer in it")
        message = self._choices[min(self._choices)].to_dict(0)["message"]
        if not calls:
            message.pop("tool_calls", None)
        try:
            return parse_message({**message, "role": "assistant"}, "the model's reply")
        except InvalidMessage as exc:
            raise ModelProtocolError(f"the model answered with an invalid message: {exc}") from exc

    def build_completion(self) -> dict[str, Any]:
        """Return the reply as a completion, as far as it has arrived.

        `choices` may be empty, a `finish_reason` may be None, and the arguments of the last tool call may be incomplete JSON.
        """
        completion = {"object": "chat.completion", **self._head}
        if self.usage is not None:
            completion["usage"] = dict(self.usage)
        completion["choices"] = [self._choices[index].to_dict(index) for index in sorted(self._choices)]
        return completion

    def _open(self, index: int) -> _Choice:
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _Choice()
            self.finished = False
            self._check_parts()
        return choice

    def _grow(self, size: int) -> None:
        """Add to the size of the reply, reasoning and tool arguments included.

        Raises:
            ModelReplyTooLarge: The reply is too large.
        """
        self._size += size
        if self._size > MODEL_REPLY_BYTES:
            raise ModelReplyTooLarge(f"the model's reply has more than {MODEL_REPLY_BYTES:,} bytes")

    def _check_parts(self) -> None:
        if len(self._choices) + sum(choice.parts for choice in self._choices.values()) > MODEL_REPLY_PARTS:
            raise ModelReplyTooLarge(f"the model's reply has more than {MODEL_REPLY_PARTS:,} choices, calls and blocks")


class _Choice:
    """One choice of a reply, as far as it has arrived."""

    __slots__ = ("calls", "fields", "message")

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {"finish_reason": None}
        self.message: dict[str, Any] = {}
        self.calls: dict[int, dict[str, Any]] = {}

    @property
    def parts(self) -> int:
        """Number of tool calls, plus the number of items of all lists in the message."""
        return len(self.calls) + sum(len(value) for value in self.message.values() if isinstance(value, list))

    def add_call(self, delta: CallStart | CallArguments) -> None:
        key, field = ("custom", "input") if delta.kind == "custom" else ("function", "arguments")
        if isinstance(delta, CallStart):
            call = self.calls[delta.at] = {
                "id": delta.id,
                "type": delta.kind,
                key: {"name": delta.name, field: _Pieces("")},
            }
        else:
            call = self.calls[delta.at]
            _merge_field(call.setdefault(key, {}), field, delta.text)
        for name, value in delta.extra.items():
            _merge_field(call, name, value)

    def finish(self, delta: Finish) -> None:
        self.fields["finish_reason"] = delta.reason
        for name, value in delta.extra.items():
            _merge_field(self.fields, name, value, growing=False)

    def to_dict(self, index: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": None, **_join_pieces(self.message)}
        if self.calls:
            message["tool_calls"] = [_join_pieces(self.calls[number]) for number in sorted(self.calls)]
        return {"index": index, "message": message, **_join_pieces(self.fields)}


# -- values that grow ----------------------------------------------------------


class _Pieces:
    """A string that grows piece by piece. The pieces are joined at the end, because appending to a long string copies it each time."""

    __slots__ = ("_joined", "latest")

    def __init__(self, first: str) -> None:
        self._joined: list[str] = []
        self.latest = [first]
        """The newest pieces, to which more can be appended."""

    def join(self) -> None:
        """Join the newest pieces, because each separate piece needs 60 more bytes of memory. Called after every 1,024 pieces."""
        self._joined.append("".join(self.latest))
        self.latest.clear()

    @property
    def text(self) -> str:
        """The complete string."""
        return "".join([*self._joined, *self.latest])


def _merge_field(target: dict[str, Any], key: str, new: Any, *, growing: bool = True) -> None:
    """Merge `new` into `target[key]` by the rules of this module.

    Args:
        target: Object that contains the field.
        key: Name of the field.
        new: Newly arrived value.
        growing: True for fields of a delta, whose strings are joined. False: a new string replaces the old one.
    """
    old = target.get(key)
    if old is None:
        if new is not None or key not in target:
            target[key] = _copy_growing(new, key, growing=growing)
    elif isinstance(old, _Pieces) and isinstance(new, str):
        old.latest.append(new)
        if len(old.latest) >= _PIECES_JOINED:
            old.join()
    elif isinstance(old, dict) and isinstance(new, dict):
        for inner, value in new.items():
            _merge_field(old, inner, value, growing=growing)
    elif isinstance(old, list):
        _extend(old, new, growing=growing)
    elif isinstance(old, _Pieces) and isinstance(new, list):
        text = old.text  # Magistral sends text first and parts later, or the reverse
        target[key] = [{"type": "text", "text": text}] if text else []
        _extend(target[key], new, growing=growing)
    elif new is not None and not (growing and key in KEPT and old != ""):
        target[key] = _copy_growing(new, key, growing=growing)


def _extend(old: list[Any], new: Any, *, growing: bool) -> None:
    if isinstance(new, str):
        new = [{"type": "text", "text": new}] if new else []
    for item in new if isinstance(new, list) else ():
        same = _find_item(old, item)
        if same is None:
            old.append(_copy_growing(item, growing=growing))
        else:
            for key, value in item.items():
                _merge_field(same, key, value, growing=growing)


def _find_item(items: list[Any], item: Any) -> dict[str, Any] | None:
    """Return the item of a list that `item` continues: the one with the same `index` and type. Return None if there is no such item."""
    if not isinstance(item, dict) or not isinstance(item.get("index"), int):
        return None
    for known in reversed(items):
        if isinstance(known, dict) and known.get("index") == item["index"]:
            return known if item.get("type") in (None, known.get("type")) else None
    return None


def _copy_growing(value: Any, key: str = "", *, growing: bool = True) -> Any:
    """Return a copy of `value` whose strings can grow. Changing the copy does not change the chunk that contains `value`."""
    if isinstance(value, str):
        return _Pieces(value) if growing and key and key not in KEPT else value
    if isinstance(value, dict):
        return {inner: _copy_growing(item, inner, growing=growing) for inner, item in value.items()}
    if isinstance(value, list):
        return [_copy_growing(item, growing=growing) for item in value]
    return value


def _join_pieces(value: Any) -> Any:
    """Return a deep copy of `value` in which each `_Pieces` is replaced by its string."""
    if isinstance(value, _Pieces):
        return value.text
    if isinstance(value, dict):
        return {key: _join_pieces(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_join_pieces(item) for item in value]
    return value


class TokenUsage(NamedTuple):
    """Token counts of one call. A number that the provider did not report, or that is invalid, is 0."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """The number of `prompt_tokens` that the provider read from its cache."""


def read_usage(usage: object) -> TokenUsage:
    """Return the token counts of a completion's `usage`. All counts are 0 if `usage` is not an object."""
    if not isinstance(usage, Mapping):
        return TokenUsage()
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else 0
    return TokenUsage(
        _to_count(usage.get("prompt_tokens")), _to_count(usage.get("completion_tokens")), _to_count(cached)
    )


def join_usages(usages: Sequence[object]) -> object:
    """Return the sum of several completions' `usage` in Chat Completions format, a single one unchanged, and None if there is none."""
    if len(usages) < 2:
        return usages[0] if usages else None
    read = [read_usage(usage) for usage in usages]
    return {
        "prompt_tokens": sum(one.prompt_tokens for one in read),
        "completion_tokens": sum(one.completion_tokens for one in read),
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in read)},
    }


def _to_count(value: Any) -> int:
    return value if is_whole(value) else 0
