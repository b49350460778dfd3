"""Voice records: exporting a log as the history of a voice agent, and validating imported records."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.log import erase_content, extend
from holdfast.domain.session import NewEntry, Tail
from holdfast.errors import InvalidMetadata
from holdfast.wire.exports import parse_own_fields
from holdfast.wire.openai import parse_message
from holdfast.wire.voice import SOURCES, check_metadata, make_records

ALL = ("asr", "message", "command", "llm", "greeting", "llm_failure", "silence")
ROLES = ("system", "developer", "user", "assistant", "tool")
GOOD = {
    *(("user", source) for source in ("asr", "message", "command")),
    *(("assistant", source) for source in ("llm", "greeting", "llm_failure", "silence", "command")),
}
"""The allowed pairs of role and source."""


def make_entries(*messages: dict[str, Any]) -> Any:
    """Make a log of messages parsed like those of the REST API."""
    new = [
        NewEntry(message=parse_message(one), tokens=1, **{"timestamp": 5, **parse_own_fields(one, f"messages[{at}]")})
        for at, one in enumerate(messages)
    ]
    return extend(Tail(), new)[0]


# -- export -----------------------------------------------------------------------


def test_interruption_fields_are_exported_all_or_none() -> None:
    """Of a reply cut during generation, the content is the original; uninterrupted replies have no such fields."""
    user = {"role": "user", "content": "a"}
    log = make_entries(
        user,
        {"role": "assistant", "content": "on", "metadata": {"interrupted": True, "interrupt_timestamp": 7}},
        user,
        {"role": "assistant", "content": "on", "metadata": {"interrupted": True}},
        user,
        {"role": "assistant", "content": "on", "metadata": {"interrupted": False, "user": "x"}},
    )
    assert [record["metadata"] for record in make_records(log)[1::2]] == [
        {"source": "llm", "interrupted": True, "interrupt_timestamp": 7, "original": "on"},
        {"source": "llm", "interrupted": True, "interrupt_timestamp": 5, "original": "on"},
        {"source": "llm", "user": "x"},
    ]


def test_an_erased_message_is_exported_as_erased() -> None:
    (entry,) = make_entries({"role": "assistant", "content": "secret", "metadata": {"source": "greeting"}})
    import msgspec

    gone = msgspec.structs.replace(entry, message=erase_content(entry.message), metadata=None, erased=True)
    assert make_records([gone])[0]["content"] == "[erased]"


# -- import ------------------------------------------------------------------------


CUT = {"interrupted": True, "interrupt_timestamp": 5, "original": "abc"}


def test_valid_metadata_is_kept() -> None:
    """Unknown fields are kept as well; `interrupted: false` is dropped."""
    assert check_metadata("assistant", {**CUT, "x": [1]}) == {**CUT, "x": [1]}
    assert check_metadata("user", {"interrupted": False, "x": 1}) == {"x": 1}
    assert check_metadata("tool", {"x": 1}) == {"x": 1}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
metadata = st.dictionaries(
    st.sampled_from(["source", "interrupted", "interrupt_timestamp", "original", "user", "x"]),
    st.one_of(json_values, st.sampled_from([*ALL, True, False, 5])),
)


@given(role=st.sampled_from(ROLES), given_=metadata)
def test_accepted_metadata_round_trips(role: str, given_: dict[str, Any]) -> None:
    """Metadata is either rejected or exported as a record that can be imported again unchanged."""
    message = {"role": role, "content": "word", "metadata": given_, **({"tool_call_id": "c"} if role == "tool" else {})}
    try:
        log = make_entries(message)
    except InvalidMetadata:
        return
    told = make_records(log)
    assert len(told) == (role in SOURCES)
    for record in told:
        assert (role, record["metadata"]["source"]) in GOOD
        cut = {"interrupted", "interrupt_timestamp", "original"} & set(record["metadata"])
        assert len(cut) in (0, 3)
        assert make_records(make_entries(record))[0]["metadata"] == record["metadata"]
