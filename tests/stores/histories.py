"""Sessions with a past, made at random: what exports, imports and backups have to carry."""

from __future__ import annotations

import random
from typing import Any

from holdfast.domain.log import erase_content
from holdfast.domain.session import ModelCall, SessionRef
from holdfast.holdfast import Holdfast
from holdfast.stores.log import Append
from holdfast.stores.sessions import SessionPatch
from holdfast.tokens import STORED
from holdfast.wire.exports import parse_system_messages

WORDS = (
    "hi",
    "Grüße 🙂",
    "a\0b",
    "\u202egnp",
    "١٢٣",
    "e\u0301é",
    "  ",
    "",
    "line\nline",
    '"quoted" \\ back',
    "x" * 70_000,
)
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
ELSEWHERE = {"type": "input_file", "file_url": "https://example.com/a.pdf", "filename": "a.pdf"}
MOVIE = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}


def _call(id_: str) -> dict[str, Any]:
    return {
        "id": id_,
        "type": "function",
        "function": {"name": "look", "arguments": '{"at": 1}', "strict": True},
        "x": [1],
    }


def _round(dice: random.Random, at: int) -> list[dict[str, Any]]:
    """A few messages that may follow each other."""
    text = dice.choice(WORDS)
    own = {"x_trace": {"n": at}, "importance": dice.choice([None, 0, 0.25, 1]), "pinned": dice.random() < 0.2}
    user = {"role": "user", "content": f"{at} {text}", "timestamp": dice.randrange(10**12), **own}
    return dice.choice(
        [
            [user],
            [user, {"role": "assistant", "content": text, "agent": "bo", "metadata": {"source": "llm"}}],
            [{"role": "user", "content": [{"type": "text", "text": text}, PICTURE, MOVIE, ELSEWHERE]}],
            [
                {"role": "assistant", "content": None, "tool_calls": [_call("x"), _call("y")], "reasoning": "hm"},
                {"role": "tool", "tool_call_id": "y", "content": text},
                {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "seen"}], "name": "look"},
                {"role": "assistant", "content": "done"},
            ],
            [{"role": "assistant", "content": None, "tool_calls": [_call(f"z{at}")]}],
            [{"role": "tool", "tool_call_id": f"z{at - 1}", "content": "late"}],
            [{"role": "system", "content": "in the log"}],
        ]
    )


async def grow_session(hf: Holdfast, seed: int, *, user_id: str = "ada", rounds: int = 12) -> SessionRef:
    """A session that was appended to, edited, erased from and perhaps closed at random."""
    dice = random.Random(seed)
    system = parse_system_messages(["Be kind.", {"role": "developer", "content": [{"type": "text", "text": "ü"}]}])
    fields: dict[str, Any] = {
        "system_messages": dice.choice([(), system]),
        "state": dice.choice([{}, {"step": 3, "deep": {"list": [1, None, "\0"]}}]),
        "metadata": dice.choice([{}, {"channel": "web", "n": 1.5}]),
        "ttl": dice.choice([None, 10**10]),
    }
    session = await hf.create(f"s{seed}", user_id=user_id, **fields)
    handle, ref = hf.handle(session), session.ref
    for at in range(rounds):
        size = (await handle.info()).tail.next_seq
        if size and dice.random() < 0.25:
            await hf.store.append(ref, Append(retire_from=dice.randrange(size), timestamp=hf.clock()))
        await handle.append(_round(dice, at))
        if dice.random() < 0.3:
            turn = (await handle.info()).tail.turn_id
            await hf.store.append(ref, Append(calls=[_make_call(hf, at, turn)], timestamp=hf.clock()))
        if dice.random() < 0.2:
            seq = dice.randrange((await handle.info()).tail.next_seq)
            (entry,) = await hf.store.entries(ref, start=seq, stop=seq + 1, retired=True)
            left = STORED.message(erase_content(entry.message))
            await hf.erase(ref, seq, tokens=dice.choice([None, left]))
    if dice.random() < 0.3:
        await hf.store.update(ref, SessionPatch(metadata={"late": True}), timestamp=hf.clock())
    return ref


def _make_call(hf: Holdfast, at: int, turn: int) -> ModelCall:
    return ModelCall(
        model="gpt-4o",
        timestamp=hf.clock(),
        prompt_tokens=100 + at,
        completion_tokens=5,
        cached_tokens=at,
        turn_id=max(turn, 0),
        through=at - 1,
        view="v",
        hash=bytes([at]) * 16,
        build=b'{"budget": 1}',
    )
