"""Send models the working set, which is a prompt within a token budget, instead of all messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from strands.agent.conversation_manager import ConversationManager
from strands.hooks import AgentInitializedEvent, HookRegistry
from strands.middleware import InvokeModelContext, InvokeModelStage
from strands.types.exceptions import ContextWindowOverflowException

import holdfast
from holdfast.adapters.strands.messages import Json, MessagePart, is_pinned, make_blocks, make_key, split_message
from holdfast.adapters.strands.sessions import HoldfastSessionManager
from holdfast.errors import BudgetTooSmall

STEP: Final = 0.7
"""Fraction of the tokens to which a prompt is shortened after the provider rejected it as too long."""
STEPS: Final = 4
"""Maximum number of prompts that are tried for one call."""

OPENING: Final = "[the conversation begins here]"
"""First message of a prompt that would begin with the assistant, which some providers reject."""


class _Piece(NamedTuple):
    """A message of a working set in Chat Completions format, and the content blocks to send for it."""

    chat: Json
    blocks: Sequence[Json]
    message: Json | None = None
    """The message that has these blocks; None if they were shortened or generated."""


class HoldfastConversationManager(ConversationManager):
    """Sends the model the working set of the conversation. `agent.messages` keeps all messages, and no message is changed.

    Messages that are sent in full keep all their blocks, such as reasoning with signatures and cache points. If the provider rejects a
    prompt as too long, smaller ones are tried.

    Args:
        sessions: the session manager of the agent. The working set then comes from the agent's log. None, or if the agent's messages
            differ from the log: each call fits the messages into the budget.
        budget: maximum tokens of the conversation; None: the budget of the `Holdfast`, or as many tokens as the model's context window
            allows.
        strategy: name of the strategy; None: the strategy of the `Holdfast`, or `digest`.
        options: settings of the strategy, for example `target=0.5`.
    """

    def __init__(
        self,
        sessions: HoldfastSessionManager | None = None,
        *,
        budget: int | None = None,
        strategy: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._sessions = sessions
        given = {"budget": budget, "strategy": strategy, **options}
        self._options = {name: value for name, value in given.items() if value is not None}

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Register the hook that adds the working set to a new agent's model calls."""
        super().register_hooks(registry, **kwargs)
        registry.add_callback(AgentInitializedEvent, self._add_middleware)

    def _add_middleware(self, event: AgentInitializedEvent[Any]) -> None:
        event.agent.add_middleware(InvokeModelStage, self._invoke_model)

    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        """Do nothing: the agent keeps all messages."""

    def reduce_context(self, agent: Any, e: Exception | None = None, **kwargs: Any) -> None:
        """Raise the error, if there is one: smaller prompts were tried already."""
        if e is not None:
            raise e

    def restore_from_session(self, state: dict[str, Any]) -> None:
        """Restore all messages, also of a session from which another conversation manager has removed some."""
        self.removed_message_count = 0

    async def _invoke_model(
        self, context: InvokeModelContext, next_fn: Callable[[InvokeModelContext], AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[Any, None]:
        """Call the model with the working set, and with a smaller prompt each time the provider rejects one as too long."""
        pieces = await self._find_pieces(context)
        error: ContextWindowOverflowException | None = None
        for step in range(STEPS):
            try:
                smaller = await asyncio.to_thread(_shrink, pieces, STEP**step) if step else pieces
            except BudgetTooSmall:
                break
            try:
                async for event in next_fn(_replace_messages(context, smaller)):
                    yield event
                return
            except ContextWindowOverflowException as exc:
                error = exc
        assert error is not None, "there is at least one prompt"
        raise error

    async def _find_pieces(self, context: InvokeModelContext) -> Sequence[_Piece]:
        options = {**self._options, **_describe_model(context)}
        messages: list[Any] = list(context.messages)
        injected: Sequence[Any] = ()
        if count := context.dynamic_trailing_blocks:  # blocks that are rebuilt for each call are sent in addition
            *_, last = messages
            messages[-1], injected = {**last, "content": last["content"][:-count]}, last["content"][-count:]
        found = None
        if self._sessions is not None:
            keys, pinned = [make_key(one) for one in messages], [is_pinned(one) for one in messages]
            found = await self._sessions.read_context(context.agent, keys, pinned, options)
        if found is None:
            pieces = await asyncio.to_thread(_fit, messages, context.system_prompt, options)
        else:
            pieces = _make_pieces(found.context, messages, found.positions)
        return [*pieces, _Piece({"role": "user", "content": ""}, injected)] if injected else pieces


def _describe_model(context: InvokeModelContext) -> Json:
    """Return the model and the tools of a call, as arguments of `holdfast.fit` and `SessionHandle.context`."""
    config = context.model.get_config()
    name = config.get("model_id") if isinstance(config, Mapping) else None
    tools = [
        {
            "type": "function",
            "function": {
                "name": spec["name"],
                "description": spec["description"],
                "parameters": spec["inputSchema"].get("json", spec["inputSchema"]),
            },
        }
        for spec in context.tool_specs
    ]
    return {"tools": tools, **({"model": name} if isinstance(name, str) and name else {})}


def _fit(messages: Sequence[Json], system: Any, options: Json) -> list[_Piece]:
    """Fit all messages into the budget, without a log."""
    parts = [
        (part.chat, (at, offset))
        for at, message in enumerate(messages)
        for offset, part in enumerate(split_message(message))
    ]
    text = system if isinstance(system, str) else "\n".join(block.get("text", "") for block in system or ())
    prompt = [{"role": "system", "content": text}] if text else []
    context = holdfast.fit([*prompt, *(chat for chat, _ in parts)], **{"model": "unknown", **options})
    return _make_pieces(context, messages, dict(enumerate(position for _, position in parts)))


def _make_pieces(
    context: holdfast.Context, messages: Sequence[Json], positions: Mapping[int, tuple[int, int]]
) -> list[_Piece]:
    """Convert a working set to pieces. What is sent in full has the blocks of the agent's own messages.

    Args:
        context: the working set.
        messages: the agent's messages.
        positions: for the number of each source: the index of its message, and its position among the message's parts.
    """
    split: dict[int, Sequence[MessagePart]] = {}
    sources = list(zip(context.messages, context.sources, strict=True))
    results = {source.seqs[0] for chat, source in sources if source.kind == "entry" and chat["role"] == "tool"}
    pieces: list[_Piece] = []
    for chat, source in sources:
        if source.kind == "system":
            continue
        if source.kind != "entry":
            pieces.append(_Piece(chat, make_blocks(chat)))
            continue
        at, offset = positions[source.seqs[0]]
        parts = split.setdefault(at, split_message(messages[at]))
        own = parts[offset].blocks if offset < len(parts) else []
        if chat["role"] == "user" and source.seqs[0] in results:
            continue  # Chat Completions need media of results in a message of the user; Strands has them in the result.
        if source.verbatim:
            pieces.append(_Piece(chat, own, messages[at]))
        else:
            pieces.append(_Piece(chat, make_blocks(chat, own)))
    return pieces


def _shrink(pieces: Sequence[_Piece], share: float) -> Sequence[_Piece]:
    """Fit a working set into a share of its tokens.

    Raises:
        BudgetTooSmall: the messages that must be sent do not fit.
    """
    chats = [piece.chat for piece in pieces]
    tokens = holdfast.fit(chats, budget=2**31).conversation_tokens
    context = holdfast.fit(chats, budget=max(1, int(tokens * share)))
    made: list[_Piece] = []
    for chat, source in zip(context.messages, context.sources, strict=True):
        known = pieces[source.seqs[0]] if source.kind == "entry" else None
        if known is None:
            made.append(_Piece(chat, make_blocks(chat)))
        else:
            made.append(known if source.verbatim else _Piece(chat, make_blocks(chat, known.blocks)))
    return made


def _replace_messages(context: InvokeModelContext, pieces: Sequence[_Piece]) -> InvokeModelContext:
    """Return the context of a call with the messages to send. Consecutive pieces of one role become one message."""
    groups: list[list[_Piece]] = []
    roles: list[str] = []
    for piece in pieces:
        role = "assistant" if piece.chat["role"] == "assistant" else "user"
        if not roles or roles[-1] != role:
            roles.append(role)
            groups.append([])
        groups[-1].append(piece)
    messages: list[Any] = [{"role": "user", "content": [{"text": OPENING}]}] if roles[:1] == ["assistant"] else []
    for role, group in zip(roles, groups, strict=True):
        blocks = [block for piece in group for block in piece.blocks]
        own = group[0].message
        if own is not None and all(piece.message is own for piece in group) and len(blocks) == len(own["content"]):
            messages.append(own)
        elif blocks:
            messages.append({"role": role, "content": blocks})
    return context.replace(messages=messages)
