"""The API's objects about state, as JSON Schema."""

from __future__ import annotations

from typing import Any, Final

from holdfast import limits
from holdfast.server.shapes import Schema, array, asked, free, nullable, record, text, whole

_KEY: Final = text(
    f"with the prefix of its scope (`user:`, `app:`, `temp:`; none: the session's own); at most {limits.STATE_KEY_BYTES}"
    " bytes behind it",
    minLength=1,
)
_VALUE: Final[Schema] = {"description": f"any JSON, at most {limits.STATE_VALUE_BYTES} bytes; null: nothing"}
_FLAT: Final = (
    "Values by key, with the prefix of its scope: `user:`, `app:`; none: the session's own. Of each scope at most"
    f" {limits.STATE_KEYS} keys and {limits.STATE_BYTES} bytes."
)


def _operation(op: str, about: str, fields: dict[str, Any], *required: str) -> Schema:
    return asked(about, {"op": {"const": op}, "key": _KEY, **fields}, "op", "key", *required)


STATE_COMPONENTS: Final[dict[str, Schema]] = {
    "State": record(_FLAT, {}, more=True),
    "StateOperations": asked(
        "What is to be done, all of it or nothing, in this order; what is expected is looked at first.",
        {
            "changes": array(
                {
                    "oneOf": [
                        _operation("set", "Have a value stand under a key.", {"value": _VALUE}, "value"),
                        _operation("delete", "Have nothing stand under a key.", {}),
                        _operation(
                            "increment",
                            "Add to the number under a key, to 0 where there is none.",
                            {"by": {"type": "number", "description": "unset: 1"}},
                        ),
                        _operation(
                            "append",
                            "Add to the end of the list under a key, of an empty one where there is none.",
                            {"values": array(_VALUE)},
                            "values",
                        ),
                        _operation(
                            "expect", "What must stand under a key before; else 412.", {"value": _VALUE}, "value"
                        ),
                    ]
                },
                minItems=1,
                description=f"at most {limits.STATE_CHANGES}; more are a 413",
            )
        },
        "changes",
    ),
    "StateChanged": record(
        "What was changed.",
        {
            "object": {"const": "state.change"},
            "version": whole("the session's, or the scope's"),
            "values": free("what stands under the changed keys; null: nothing"),
        },
    ),
    "DeletedState": record(
        "It is gone.",
        {
            "object": {"const": "state"},
            "user_id": nullable(text("whose it was; null: the tenant's")),
            "deleted": {"const": True},
            "keys": whole("how many there were"),
        },
    ),
}
