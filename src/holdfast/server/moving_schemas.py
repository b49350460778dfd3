"""Sessions that move or go, as JSON Schema: exports, imports, forks, receipts."""

from __future__ import annotations

from typing import Final, get_args

from holdfast.domain.session import EndReason
from holdfast.life.receipts import Receipt
from holdfast.server.shapes import ID, TIME, Schema, array, asked, free, nullable, record, ref, text, whole
from holdfast.wire.past import MEDIA_LISTS

_MEDIUM: Final = record(
    "A medium in a message; it travels inside of that.",
    {
        "seq": whole("the message's place in the log"),
        "part": whole("which part of its content"),
        "type": text("the part's"),
        "mime_type": text(),
        "name": text(),
        "url": text("where it lies, if that is elsewhere"),
        "sha256": text("of its data, hexadecimal; of what is no base64, `raw:` and that of the text"),
        "bytes": whole("of its data"),
        "size": array(whole(), description="of an image: width and height, pixels"),
        "frames": whole("of a video that came as images: how many"),
        "fps": {"description": "of such a video, as it came"},
        "total_num_frames": {"description": "of such a video, as it came"},
        "sampled_indices": {"description": "of such a video, as it came"},
    },
    optional=(
        "mime_type",
        "name",
        "url",
        "sha256",
        "bytes",
        "size",
        "frames",
        "fps",
        "total_num_frames",
        "sampled_indices",
    ),
)
_CALL: Final = record(
    "A model call.",
    {
        "model": text(),
        "timestamp": TIME,
        **{name: whole() for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "turn_id")},
        "through": whole("seq of the last message that its prompt was built from; -1: none", -1),
        "view": text("key of the view that built its prompt"),
        "hash": text("of the messages sent, hexadecimal"),
        "build": text("how its prompt was built, base64"),
    },
)
SCHEMA_VERSION: Final = whole("version of the export's form", 1)
PAST: Final[dict[str, Schema]] = {
    "ended_at": nullable(TIME),
    "end_reason": {"enum": [*get_args(EndReason), None], "description": "why it was closed"},
}
EXPORT: Final[dict[str, Schema]] = {
    "messages": array(ref("Entry")),
    **{name: array(_MEDIUM) for name in MEDIA_LISTS},
    "artifacts": array(free("what there is of each: name, version, type, size, hash; the content is not part of it")),
    "calls": array(_CALL, description="with `calls=true` alone"),
}
_GONE: Final[dict[str, Schema]] = {"deleted": {"const": True}, "receipt": ref("Receipt")}

MOVING_COMPONENTS: Final[dict[str, Schema]] = {
    "Receipt": record("How much was removed.", {name: whole() for name in Receipt.__struct_fields__}),
    "Deleted": record("It is gone.", {"id": ID, "object": {"const": "session"}, **_GONE}),
    "DeletedUser": record("All of it is gone.", {"id": ID, "object": {"const": "user"}, **_GONE}),
    "ForkRequest": asked(
        "Where to fork.",
        {
            "at_turn": nullable(whole("the last turn that is copied; unset: all of them")),
            "id": nullable(text("of the new session; unset: one is made", minLength=1)),
        },
    ),
    "MoveRequest": asked(
        "Where to: at least one of these.",
        {
            "user_id": nullable(text("whose it is to be; unset: its user's still", minLength=1)),
            "agent": nullable(text("whose it is to be; null: no agent's; unset: as before")),
            "id": nullable(text("what it is to be called; unset: as before", minLength=1)),
        },
    ),
    "RewindRequest": asked("Where to go back to.", {"at_turn": whole("the last turn that stays")}, "at_turn"),
}
