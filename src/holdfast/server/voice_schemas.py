"""Voice records, interruptions and speech, as JSON Schema."""

from __future__ import annotations

from typing import Final

from holdfast.domain.heard import SPEAKING_RATE
from holdfast.server.shapes import ID, TIME, Schema, array, asked, boolean, nullable, record, ref, text, whole
from holdfast.wire.voice import SOURCES

_BOTH: Final = sorted({source for sources in SOURCES.values() for source in sources})
_SOURCES: Final = "; ".join(f"{role}: {', '.join(sources)}" for role, sources in SOURCES.items())
_CUT: Final[dict[str, Schema]] = {
    "interrupted": {"const": True, "description": "it was interrupted: `content` is what was delivered"},
    "interrupt_timestamp": TIME,
    "original": text("what was generated of it"),
}
_METADATA: Final = record(
    f"Where it came from ({_SOURCES}), how it was interrupted if it was, and what else its writer keeps here.",
    {"source": {"type": "string", "enum": _BOTH}, "user": {"description": "who spoke"}, **_CUT},
    optional=("user", *_CUT),
    more=True,
)


def _one_of(about: str, *values: str) -> Schema:
    return {"type": ["string", "null"], "enum": [*values, None], "description": about}


VOICE_COMPONENTS: Final[dict[str, Schema]] = {
    "VoiceRecord": record(
        "What was said, as voice agents keep it.",
        {
            "role": {"type": "string", "enum": list(SOURCES)},
            "content": text(),
            "turn_id": whole("which turn it belongs to, from 0"),
            "timestamp": TIME,
            "agent": text("who said it, where that was another agent than the session's own"),
            "metadata": _METADATA,
        },
        optional=("agent",),
    ),
    "History": {
        "description": "`contents`, or with `view=plain` `messages`.",
        "anyOf": [
            record("The voice form.", {"contents": array(ref("VoiceRecord"))}),
            record(
                "The plain form.",
                {"messages": array(record("Role and content alone.", {"role": text(), "content": text()}))},
            ),
        ],
    },
    "InterruptRequest": asked(
        "What was heard of the last reply: one of `content`, `chars` and `ms`, or all that there is of it.",
        {
            "content": nullable(text("the text that was heard; how it sets its words apart does not matter")),
            "chars": nullable(whole("how many characters of it were heard")),
            "ms": nullable(whole("for how many milliseconds it was heard")),
            "total_ms": nullable(
                whole(f"how many the whole would have taken; unset: {SPEAKING_RATE} characters a second", 1)
            ),
            "timestamp": nullable({**TIME, "description": "when that was, milliseconds since the epoch; unset: now"}),
            "turn_id": nullable(whole("the turn that the reply must be of; a later one that runs is left alone")),
        },
    ),
    "Interruption": record(
        "What became of the last reply.",
        {
            "object": {"const": "interruption"},
            "session_id": ID,
            "version": whole("the session's"),
            "interrupted": boolean("whether it was interrupted: not where all of it was heard"),
            "stopped": boolean("whether a turn was running, and was asked to stop"),
            "entry": {"anyOf": [ref("Entry"), {"type": "null"}], "description": "what is left of it; null: nothing"},
        },
    ),
    "SpeakRequest": asked(
        "What the agent is to say.",
        {
            "text": nullable(
                text("at most `gateway.max_speech` bytes; unset: the agent's own, by `source`", minLength=1)
            ),
            "priority": _one_of(
                "while a turn runs: stop it first (the default), wait for it, or say nothing",
                "INTERRUPT",
                "APPEND",
                "IGNORE",
            ),
            "source": _one_of("what it is recorded as; unset: `command`", "command", "greeting", "silence"),
            "interruptable": {
                "type": ["boolean", "null"],
                "description": "false: an upstream that knows voice records is told that it may not be interrupted",
            },
        },
    ),
    "Spoken": record(
        "What became of it.",
        {
            "object": {"const": "speech"},
            "session_id": ID,
            "version": whole("the session's"),
            "spoken": boolean("false: a turn was running that was not to be disturbed"),
            "stopped": boolean("whether a turn was running, and was asked to stop"),
            "entry": {"anyOf": [ref("Entry"), {"type": "null"}], "description": "what was said; null: nothing"},
        },
    ),
}
