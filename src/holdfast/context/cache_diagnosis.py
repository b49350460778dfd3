"""Find out why a provider's prompt cache cannot reuse an earlier prompt.

The record of each call has hashes of the parts of its request, and the hash of its prompt. So a prompt can be compared with any earlier one,
also after a restart and on another server. A prompt reuses an earlier one if it begins with all of its messages and nothing before the
messages has changed. Whether the provider's cache still had the earlier prompt is not known here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.context.build import WorkingSet
from holdfast.context.explain import BuildRecord, Diagnosis, Fingerprint, decode_record
from holdfast.context.prefix_diff import hash_messages
from holdfast.domain.session import ModelCall

_HASH: Final = 6
"""Bytes of the hash of one part of a request."""
_encode = msgspec.json.Encoder(order="sorted").encode
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("prompt_cache_key",),
    "tools": ("tools", "functions"),
    "format": ("response_format",),
    "effort": ("reasoning_effort",),
    "verbosity": ("verbosity",),
    "tier": ("service_tier",),
    "other": ("thinking", "output_config", "tool_choice", "parallel_tool_calls", "container", "mcp_servers"),
}
"""Fields of a request whose values each hash of a fingerprint covers. `model` and `system` are added to them."""


class Comparison(NamedTuple):
    """The earlier call with which the first prompt of a turn is compared."""

    state: Literal["none", "not found", "unknown", "call"]
    """`none`: the client has no earlier message yet. `not found`: there is no such message. `unknown`: its call is not recorded."""
    call: ModelCall | None = None
    record: BuildRecord | None = None
    session_id: str = ""


def make_comparison(call: ModelCall | None, session_id: str) -> Comparison:
    """Return the comparison with a recorded call of a session; None: the call is not recorded."""
    record = None if call is None else decode_record(call.build)
    if call is None or record is None or record.fingerprint is None or not call.hash:
        return Comparison("unknown")
    return Comparison("call", call, record, session_id)


def make_fingerprint(body: Mapping[str, Any], built: WorkingSet, upstream: str) -> Fingerprint:
    """Return the hashes of the parts of a request that a provider's cache depends on.

    Args:
        body: the request as it is sent, in the format of Chat Completions.
        built: the working set of the request.
        upstream: name of the model's upstream.
    """
    hashes = {part: _hash([body.get(name) for name in names]) for part, names in _PARTS.items()}
    cuts = [(seq, cut.tokens) for seq, cut in built.window.cuts.items()]
    return Fingerprint(
        model=_hash([upstream, body.get("model"), body.get("speed")]),
        system=hash_messages(built.messages[: built.leading])[: 2 * _HASH],
        compaction=_hash([cuts, [compaction.mark for compaction in built.window.list_compactions()]]),
        tokens=built.total_tokens,
        **hashes,
    )


def _hash(value: Any) -> str:
    return hashlib.blake2b(_encode(value), digest_size=_HASH).hexdigest()


def diagnose(comparison: Comparison, built: WorkingSet, fingerprint: Fingerprint, session_id: str) -> Diagnosis:
    """Compare a prompt with an earlier one.

    Args:
        comparison: the earlier call.
        built: the working set of the prompt.
        fingerprint: the fingerprint of the prompt's request.
        session_id: the session of the prompt.
    """
    call, record = comparison.call, comparison.record
    before = None if record is None else record.fingerprint
    if call is None or record is None or before is None:
        return Diagnosis(comparison.state)
    changed = [part for part in ("model", *_PARTS, "system") if getattr(before, part) != getattr(fingerprint, part)]
    if hash_messages(built.messages[: record.messages]) != call.hash.hex():
        compacted = (before.compaction, record.frontier) != (fingerprint.compaction, built.view.frontier)
        changed += ["compaction"] if compacted and comparison.session_id == session_id else []
        changed.append("messages")
    tokens = call.prompt_tokens or before.tokens
    kept = 0 if {"model", "key", "tools", "system"} & set(changed) else min(tokens, record.overhead)
    return Diagnosis("compared", tuple(changed), tokens, kept)
