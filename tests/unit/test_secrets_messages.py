"""Secrets in messages: which texts are scanned, what is rejected, and what a store writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.config import check_config, load
from holdfast.domain.messages import Message, Part, ToolCall, encode_canonical, encode_payload
from holdfast.errors import InvalidRequest, SecretBlocked
from holdfast.secrets import CREDENTIALS, Guard, Pattern, Redactor, make_guard, make_redactor, make_redactor_for
from tests.amounts import examples
from tests.unit.test_secrets import BUILT_IN, draw_planted

# -- messages ----------------------------------------------------------------------------

KEY = "sk-ant-" + "a1" * 30
GONE = "[REDACTED:anthropic_key]"
EVERYWHERE = Message(
    role="assistant",
    content=(
        Part("text", f"a {KEY}", {"cache_control": {"note": KEY}}),
        Part("image_url", None, {"image_url": {"url": f"https://x.example/?k={KEY}", "detail": "low"}}),
        Part(KEY, None, {}),
    ),
    tool_calls=(ToolCall("call_1", KEY, json.dumps({"a": KEY, KEY: 1}), "function", {"x": KEY}, {"y": [KEY]}),),
    name=KEY,
    extra={"reasoning_content": f"{KEY} it was", KEY: {"deep": [KEY]}},
)


def test_every_text_of_a_message_is_scanned() -> None:
    guard = Guard(BUILT_IN)
    sweep = guard.sweep()
    told = sweep.clean_message(EVERYWHERE, "messages[3]")
    assert KEY not in repr(told)
    assert repr(told) == repr(EVERYWHERE).replace(KEY, GONE)
    places = {finding.place for finding in sweep.findings}
    assert places == {
        "messages[3]",
        "messages[3].name",
        "messages[3].content[0]",
        "messages[3].content[0].text",
        "messages[3].content[1]",
        "messages[3].content[2].type",
        "messages[3].tool_calls[0]",
        "messages[3].tool_calls[0].name",
        "messages[3].tool_calls[0].arguments",
    }
    assert guard.sweep().clean_message(told, "m") is told


def test_ids_and_media_are_not_scanned() -> None:
    picture = "data:image/png;base64," + "AKIA" + "A" * 16 + "A" * 300
    sound = "AKIA" + "A" * 400
    message = Message(
        role="user",
        content=(
            Part("image_url", None, {"image_url": {"url": picture}}),
            Part("input_audio", None, {"input_audio": {"data": sound, "format": "mp3"}}),
            Part("text", picture),
        ),
    )
    answer = Message(role="tool", content="fine", tool_call_id=KEY)
    for one in (message, answer):
        assert Guard(BUILT_IN).sweep().clean_message(one, "m") is one


def test_a_secret_split_over_parts_is_not_detected() -> None:
    message = Message(role="user", content=(Part("text", KEY[:15]), Part("text", KEY[15:])))
    assert Guard(BUILT_IN).mask_messages([message]) == (message,)


def test_block_rejects_requests_and_redacts_replies_and_results() -> None:
    guard = Guard(watch=make_redactor(everything=CREDENTIALS), action="block")
    for role in ("user", "system", "developer"):
        with pytest.raises(SecretBlocked) as caught:
            guard.mask_messages([Message(role="user", content="hi"), Message(role=role, content=f"it is {KEY}")])
        assert caught.value.found == [("anthropic_key", "messages[1].content")]
        assert caught.value.param == "messages[1].content"
        assert KEY not in str(caught.value)
        assert "a1a1" not in repr(caught.value)
    said = Message(role="assistant", content=f"it is {KEY}")
    result = Message(role="tool", content=KEY, tool_call_id="c")
    assert guard.mask_messages([said, result]) == (
        replace(said, content=f"it is {GONE}"),
        replace(result, content=GONE),
    )
    assert guard.counts == {("anthropic_key", "block"): 3}


def test_a_rejection_names_five_places_and_the_number_of_others() -> None:
    guard = Guard(watch=make_redactor(), action="block")
    with pytest.raises(SecretBlocked, match=r"messages\[4\].content \(rule anthropic_key\) and 2 more: remove it"):
        guard.mask_messages([Message(role="user", content=KEY)] * 7)


def test_redaction_runs_before_the_guard() -> None:
    guard = Guard(make_redactor(rules=["anthropic_key"]), make_redactor(), "block")
    assert guard.mask_messages([Message(role="user", content=KEY)])[0].content == GONE
    with pytest.raises(SecretBlocked, match="rule home_path"):
        guard.mask_messages([Message(role="user", content=f"{KEY} /home/ada")])


def test_warn_does_not_change_messages() -> None:
    guard = Guard(watch=make_redactor(), action="warn")
    sweep = guard.sweep()
    message = Message(role="user", content=f"{KEY} {KEY}", extra={"x": KEY})
    assert sweep.clean_message(message, "m") is message
    assert {(finding.place, finding.times) for finding in sweep.findings} == {("m.content", 2), ("m", 1)}
    assert guard.mask_text(f"oh {KEY}") == f"oh {GONE}"


def test_secrets_in_error_messages_are_masked() -> None:
    guard = Guard(BUILT_IN)
    with pytest.raises(InvalidRequest) as caught, guard.mask_errors():
        raise InvalidRequest(f"role is {KEY!r}", param=f"messages[0].{KEY}")
    assert str(caught.value) == f"role is '{GONE}'"
    assert caught.value.param == f"messages[0].{GONE}"


@given(draw_planted(), st.sampled_from(["user", "assistant"]))
@settings(max_examples=examples(100))
def test_messages_with_equal_text_stay_equal_after_redaction(plant: tuple[str, str, str, str], role: str) -> None:
    _, before, secret, behind = plant
    guard = Guard(BUILT_IN)
    one, other = (
        Message(role=role, content=before + secret + behind),
        Message(role=role, content=(Part("text", before + secret + behind),)),
    )
    assert (
        len(
            {
                encode_canonical(told)
                for told in (*guard.mask_messages([one, other]), *guard.mask_messages(guard.mask_messages([one])))
            }
        )
        == 1
    )


PAGE = (Path(__file__).parents[2] / "docs" / "secrets.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
def test_docs_page_examples_load(text: str) -> None:
    found = load(text, env={})
    guard = make_guard(found.redaction, found.secret_guard)
    assert guard is not None
    assert guard.mask_messages([Message(role="user", content="EMP-123456")])[0].content == "[REDACTED:employee_number]"


# -- settings ------------------------------------------------------------------------------


class Given:
    enabled = True
    patterns = (Pattern("emp-[0-9]{6}", "employee"),)
    rules: tuple[str, ...] = ("all",)
    exclude_rules: tuple[str, ...] = ()
    on_secret: Any = "redact"


def test_settings_create_the_configured_redactor_and_guard() -> None:
    off = load("redaction: {patterns: [{regex: 'emp-[0-9]{6}', label: employee}]}", env={}).redaction
    assert make_redactor_for(off) is None
    assert make_guard(off, None) is None
    redactor = make_redactor_for(Given())
    assert isinstance(redactor, Redactor)
    assert redactor.redacted("emp-123456 /home/ada") == "[REDACTED:employee] [REDACTED:home_path]"
    guard = make_guard(off, Given())
    assert guard is not None
    assert (guard.action, guard.redaction, guard.watch is None) == ("redact", None, False)
    # A directory name is not a credential, so the guard ignores it unless configured.
    text = f"emp-123456 /home/ada {KEY}"
    assert (
        guard.mask_messages([Message(role="user", content=text)])[0].content == f"[REDACTED:employee] /home/ada {GONE}"
    )


# -- stored bytes --------------------------------------------------------------------


def make_message_with(place: int, text: str) -> Message:
    """Return a message with `text` in one of eight places and harmless text in the others."""
    fields = [text if at == place else "nothing to hide" for at in range(8)]
    arguments = json.dumps({"a": fields[2], fields[3]: [1]}, ensure_ascii=False)
    return Message(
        role="assistant",
        content=(Part("text", fields[0]), Part("text", "plain", {"note": fields[1]})),
        tool_calls=(ToolCall("c", "f", arguments, extra={"x": [fields[4]]}),),
        name=fields[5],
        extra={"reasoning": {"deep": fields[6]}, fields[7]: True},
    )


@given(draw_planted(), st.integers(0, 7))
@settings(max_examples=examples(400))
def test_stored_bytes_contain_no_planted_secret(plant: tuple[str, str, str, str], place: int) -> None:
    rule, before, secret, behind = plant
    around = encode_payload(make_message_with(place, f"{before} {behind} [REDACTED:{rule}]"))
    assume(secret.encode() not in around)  # "111" may be a word as well
    said = before + secret + behind
    [told] = Guard(BUILT_IN).mask_messages([make_message_with(place, said)])
    once, twice = (secret.replace("\\", "\\" * deep).replace("\n", "\\" * (deep - 1) + "n") for deep in (2, 4))
    stored = encode_payload(told)
    assert not [form for form in (secret, once, twice) if form.encode() in stored]
    # Nothing else has changed.
    assert told == make_message_with(place, BUILT_IN.redacted(said))


def check_text(text: str, tmp_path: Path) -> Any:
    file = tmp_path / "holdfast.yaml"
    file.write_text(text)
    return check_config(str(file), {})


def test_check_config_shows_settings_without_patterns(tmp_path: Path) -> None:
    text = """
redaction: {patterns: [{regex: my-own-secret, label: mine}]}
secret_guard: {on_secret: warn, exclude_rules: jwt}
"""
    report = check_text(text, tmp_path)
    shown = report.data["config"]
    guard, patterns = shown["secret_guard"], shown["redaction"]["patterns"]
    assert (guard["on_secret"], guard["exclude_rules"], patterns) == (
        "warn",
        ["jwt"],
        [{"regex": "***", "label": "mine"}],
    )
    assert "my-own-secret" not in report.text + repr(load(text, env={}))
    assert (report.exit_code, report.data["warnings"]) == (0, [])


def test_check_config_reports_every_mistake_with_its_line(tmp_path: Path) -> None:
    text = """
redaction:
  patterns:
    - {regex: 'my-own-secret(', label: a}
    - {regex: 'b*', label: ''}
  rules: [jwt, no_such]
secret_guard:
  on_secret: refuse
"""
    report = check_text(text, tmp_path)
    place = f"{tmp_path}/holdfast.yaml"
    unknown = [problem for problem in report.data["problems"] if "redaction.rules" in problem]
    assert unknown[0].startswith(f"{place}:6: redaction.rules: unknown rule 'no_such'; known: ")
    assert [problem for problem in report.data["problems"] if problem not in unknown] == [
        f"{place}:4: redaction.patterns[0].regex: is not a valid regular expression: missing ) at position 14",
        f"{place}:5: redaction.patterns[1].label: must be 1 to 64 letters, digits, '_', '.' or '-'",
        f"{place}:5: redaction.patterns[1].regex: matches the empty string; a match must have at least one character",
        f"{place}:8: secret_guard.on_secret: expected one of block, redact, warn, got 'refuse'",
    ]
    [problem] = check_text("redaction: {rules: [jwt, aws_acces_key]}", tmp_path).data["problems"]
    assert problem == f"{place}:1: redaction.rules: unknown rule 'aws_acces_key'; did you mean 'aws_access_key'?"
    many = json.dumps([{"regex": "x", "label": "x"}] * 101)
    [problem] = check_text(f"redaction: {{patterns: {many}}}", tmp_path).data["problems"]
    assert problem == f"{place}:1: redaction.patterns: 101 are too many; at most 100 are allowed"


def test_check_config_warns_of_rules_without_effect(tmp_path: Path) -> None:
    report = check_text("redaction: {patterns: [{regex: x, label: x}]}", tmp_path)
    assert report.exit_code == 0
    [warning] = report.data["warnings"]
    assert warning.endswith("redaction.patterns: redaction is disabled; set `redaction.enabled: true`")
    text = "redaction: {patterns: [{regex: x, label: x}], rules: [jwt]}\nsecret_guard: {}"
    [warning] = check_text(text, tmp_path).data["warnings"]
    assert "redaction.rules: redaction is disabled" in warning


def test_check_config_reports_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.config.check.is_library_installed", lambda: False)
    assert check_text("redaction: {enabled: true, rules: []}", tmp_path).exit_code == 0
    assert check_text("secret_guard: {enabled: false}", tmp_path).exit_code == 0
    report = check_text("secret_guard: {}", tmp_path)
    assert report.exit_code == 1
    assert report.data["problems"][0].endswith(
        "secret_guard: the built-in rules need the extra 'secrets' of holdfast-memory; from a clone: pip install '.[secrets]'"
    )


def test_check_config_reports_a_missing_mcp_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.config.check.find_spec", lambda _: None)
    assert check_text("", tmp_path).exit_code == 0
    report = check_text("mcp_servers: {clock: {command: x}}", tmp_path)
    assert report.exit_code == 1
    assert report.data["problems"][0].endswith(
        ":1: mcp_servers: an MCP server needs the extra 'mcp' of holdfast-memory; from a clone: pip install '.[mcp]'"
    )
