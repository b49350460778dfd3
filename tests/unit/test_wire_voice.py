"""Voice records: what a log tells as the history of a voice agent, and which fields of them are taken from outside."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.log import erase_content, extend
from holdfast.domain.messages import Message, Part, ToolCall
from holdfast.domain.session import NewEntry, Tail
from holdfast.errors import InvalidMessage, InvalidMetadata
from holdfast.wire.exports import parse_export, parse_own_fields
from holdfast.wire.openai import parse_message
from holdfast.wire.voice import SOURCES, check_metadata, make_plain_records, make_records
from tests.unit.seed_voice import CONTENTS, PLAIN

ALL = ("asr", "message", "command", "llm", "greeting", "llm_failure", "silence")
ROLES = ("system", "developer", "user", "assistant", "tool")
GOOD = {
    *(("user", source) for source in ("asr", "message", "command")),
    *(("assistant", source) for source in ("llm", "greeting", "llm_failure", "silence", "command")),
}
"""The matrix, as the seed's table has it."""


def entries(*messages: dict[str, Any]) -> Any:
    """A log of such messages, read as the REST API reads them."""
    new = [
        NewEntry(message=parse_message(one), tokens=1, **{"timestamp": 5, **parse_own_fields(one, f"messages[{at}]")})
        for at, one in enumerate(messages)
    ]
    return extend(Tail(), new)[0]


# -- the seed ------------------------------------------------------------------


def test_the_seeds_records_come_back() -> None:
    """Read as messages they are told as they were, in both forms."""
    log = entries(*CONTENTS)
    assert make_records(log) == CONTENTS
    assert make_plain_records(log) == PLAIN


def test_the_seeds_records_are_an_import() -> None:
    read = parse_export({"messages": CONTENTS})
    assert [own["metadata"] for own in read.fields] == [record["metadata"] for record in CONTENTS]
    assert [own["turn_id"] for own in read.fields] == [1, 2, 2, 3, 3, 4]


# -- out -----------------------------------------------------------------------


def test_what_was_not_said_is_left_out() -> None:
    """System messages, tools, and messages without words; what stands beside a call was said."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    log = entries(
        {"role": "user", "content": "find it"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]},
        {"role": "user", "content": "  "},
        {"role": "assistant", "content": "Here.", "metadata": {"preface": "Let me look.\n\n", "returned": [0]}},
    )
    assert make_plain_records(log) == [
        {"role": "user", "content": "find it"},
        {"role": "assistant", "content": "Let me look."},
        {"role": "assistant", "content": "Here."},
    ]
    assert [record["metadata"] for record in make_records(log)] == [
        {"source": "message"},
        {"source": "llm"},
        {"source": "llm"},
    ]
    assert all(set(record) == {"role", "content", "turn_id", "timestamp", "metadata"} for record in make_records(log))


def test_how_a_reply_was_interrupted_is_told_whole_or_not_at_all() -> None:
    """One that was cut while it was made has said all there is; of one that was not, nothing is told."""
    user = {"role": "user", "content": "a"}
    log = entries(
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


def test_an_erased_message_is_told_as_one() -> None:
    (entry,) = entries({"role": "assistant", "content": "secret", "metadata": {"source": "greeting"}})
    import msgspec

    gone = msgspec.structs.replace(entry, message=erase_content(entry.message), metadata=None, erased=True)
    assert make_records([gone])[0]["content"] == "[erased]"


def test_parts_are_told_as_text() -> None:
    parts = (Part("text", "a "), Part("image_url", extra={"image_url": {}}), Part("text", "b"))
    log, _ = extend(Tail(), [NewEntry(message=Message(role="user", content=parts), tokens=1, timestamp=1)])
    assert make_plain_records(log) == [{"role": "user", "content": "a b"}]


def test_calls_without_words_are_no_record() -> None:
    message = Message(role="assistant", content="", tool_calls=(ToolCall("c", "f"),))
    log, _ = extend(Tail(), [NewEntry(message=message, tokens=1, timestamp=1)])
    assert make_records(log) == []


# -- in ------------------------------------------------------------------------


@pytest.mark.parametrize("source", ALL)
@pytest.mark.parametrize("role", ROLES)
def test_the_matrix(role: str, source: str) -> None:
    """What the seed's table allows is taken; the rest is refused by name, with what would be right."""
    if (role, source) in GOOD:
        assert check_metadata(role, {"source": source}) == {"source": source}
        return
    with pytest.raises(InvalidMetadata) as refused:
        check_metadata(role, {"source": source}, "messages[3]")
    assert refused.value.param == "messages[3].metadata.source"
    assert "messages[3].metadata.source" in str(refused.value)
    if role in SOURCES:
        assert all(good in str(refused.value) for good in SOURCES[role])


CUT = {"interrupted": True, "interrupt_timestamp": 5, "original": "abc"}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("user", {"source": "other"}, "source"),
    ("user", {"source": None}, "source"),
    ("assistant", {"source": 5}, "source"),
    ("assistant", {"source": ["llm"]}, "source"),
    ("user", {"interrupted": True}, "interrupted"),
    ("tool", {"interrupted": True}, "interrupted"),
    ("assistant", {"interrupted": "yes"}, "interrupted"),
    ("assistant", {"interrupted": 1}, "interrupted"),
    ("assistant", {"interrupted": None}, "interrupted"),
    ("assistant", {"interrupt_timestamp": 5}, "interrupt_timestamp"),
    ("assistant", {"interrupted": False, "original": "abc"}, "original"),
    ("user", {"original": "abc"}, "original"),
    *(("assistant", {**CUT, "interrupt_timestamp": bad}, "interrupt_timestamp") for bad in ("5", 5.5, -1, True, None)),
    *(("assistant", {**CUT, "original": bad}, "original") for bad in (None, 5, ["a"])),
]


@pytest.mark.parametrize(("role", "metadata", "field"), WRONG)
def test_what_is_no_record_is_refused(role: str, metadata: dict[str, Any], field: str) -> None:
    for where, place in (("", "metadata"), ("messages[3]", "messages[3].metadata")):
        with pytest.raises(InvalidMetadata) as refused:
            parse_own_fields({"role": role, "metadata": metadata}, where)
        assert refused.value.param == f"{place}.{field}"
        assert str(refused.value).startswith(f"{place}.{field}")
    assert isinstance(refused.value, InvalidMessage)


def test_an_import_says_which_message() -> None:
    messages = [{"role": "user", "content": "a"}] * 3 + [
        {"role": "user", "content": "b", "metadata": {"source": "llm"}}
    ]
    with pytest.raises(InvalidMetadata) as refused:
        parse_export({"messages": messages})
    assert refused.value.param == "messages[3].metadata.source"


def test_what_is_good_is_kept() -> None:
    """Fields of others, too; `interrupted: false` is not worth keeping."""
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
def test_what_is_taken_is_told_and_taken_again(role: str, given_: dict[str, Any]) -> None:
    """Either it is refused as no record, or what the history tells of it is a record that is taken again, and told the same."""
    message = {"role": role, "content": "word", "metadata": given_, **({"tool_call_id": "c"} if role == "tool" else {})}
    try:
        log = entries(message)
    except InvalidMetadata:
        return
    told = make_records(log)
    assert len(told) == (role in SOURCES)
    for record in told:
        assert (role, record["metadata"]["source"]) in GOOD
        cut = {"interrupted", "interrupt_timestamp", "original"} & set(record["metadata"])
        assert len(cut) in (0, 3)
        assert make_records(entries(record))[0]["metadata"] == record["metadata"]


def test_the_seed_is_the_seed() -> None:
    """The records of the tests are those of the document, where it is at hand."""
    found = list((Path(__file__).parents[3] / "shared" / "seeds").glob("003_*.txt"))
    if not found:
        pytest.skip("the seeds are not here")
    blocks = [json.loads(one) for one in re.findall(r"```json\n(.*?)```", found[0].read_text(), re.DOTALL)]
    assert blocks[0] == {"contents": CONTENTS}
    assert blocks[1] == {"messages": PLAIN}
