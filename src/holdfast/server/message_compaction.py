"""Compaction in requests of Anthropic's API, for models that are not Anthropic's: what was asked for, and blocks that were sent back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.config.gateway import Gateway
from holdfast.domain.compaction import add_summarized
from holdfast.domain.messages import Message
from holdfast.models.codecs.messages.context_management import (
    COMPACTION,
    FIELD,
    SERVED_FOR_OTHERS,
    ContextWishes,
    FoundBlock,
    drop_blocks,
    find_block,
    has_blocks,
)
from holdfast.models.codecs.responses.ids import is_reference
from holdfast.server.apis.api_format import ParsedRequest
from holdfast.server.http import Call
from holdfast.server.requester import identify_requester, name_session
from holdfast.server.resumption import find_item, make_summary_message, resume
from holdfast.wire.openai import split_system


async def resolve_compaction(call: Call, parsed: ParsedRequest, gateway: Gateway) -> ParsedRequest:
    """Return the request with its compaction served by Holdfast. An Anthropic model gets edits, and blocks that Holdfast did not make, unchanged.

    A block that Holdfast made names the session that the request continues; the messages before it are left out. Of any other block, the
    model gets the text in place of the messages before it.

    Raises:
        UnknownCompaction: the user has no compaction with the reference in the block.
    """
    context: ContextWishes = parsed.context
    if not context.has_edits and context.compaction is None and not has_blocks(parsed.messages):
        return parsed
    body = parsed.body
    llm = call.hf.roster.find_responder(agent=body.get("agent"), model=body.get("model")).llm
    system, incoming = split_system(parsed.messages)
    block = find_block(incoming)
    if llm.dialect != "anthropic":
        clearing = merge_clearing(parsed)
        parsed = parsed._replace(body=_drop_served(body), compaction=context.compaction, clearing=clearing)
    elif block is None or not is_reference(block.signature):
        return parsed
    if block is None:
        return _with_messages(parsed, system, drop_blocks(incoming))
    return await _resume(call, parsed, gateway, system, block)


def merge_clearing(parsed: ParsedRequest) -> Mapping[str, Any] | None:
    """Return the options of `clear_tool_results` for a request, with the reasoning that its edits clear."""
    context: ContextWishes = parsed.context
    return (
        parsed.clearing if context.thinking is None else {**(parsed.clearing or {}), "keep_thinking": context.thinking}
    )


async def _resume(
    call: Call, parsed: ParsedRequest, gateway: Gateway, system: Sequence[Message], block: FoundBlock
) -> ParsedRequest:
    if block.signature is None or not is_reference(block.signature):
        return _with_messages(parsed, system, [make_summary_message(block.text), *block.after])
    owner = identify_requester(call, parsed.body, gateway, parsed.api).owner
    item = await find_item(call.hf, block.signature, owner, _WHERE)
    found = await resume(call.hf, item, block.after, 0, named=name_session(call, parsed.body, gateway))
    if found.session is not None:
        body = {**parsed.body, "session_id": found.session.id, "session_mode": "delta"}
        order = add_summarized(parsed.compaction, found.summarized)
        parsed = parsed._replace(body=body, compaction=order, predecessor=found.predecessor)
    return _with_messages(parsed, system, found.messages)


_WHERE: Final = "messages[].content[].signature"


def _drop_served(body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request without its wishes for a compaction."""
    edits = [edit for edit in (body.get(FIELD) or {}).get("edits", ()) if edit["type"] not in SERVED_FOR_OTHERS]
    kept = {name: value for name, value in body.items() if name not in (FIELD, COMPACTION)}
    return {**kept, FIELD: {"edits": edits}} if edits else kept


def _with_messages(parsed: ParsedRequest, system: Sequence[Message], incoming: Sequence[Message]) -> ParsedRequest:
    """Return the request with other messages. They have no voice record fields, whose places have changed."""
    messages = [*system, *incoming]
    unchanged = messages == parsed.messages
    return parsed._replace(
        messages=messages, own=parsed.own if unchanged else (), given=parsed.given if incoming else []
    )
