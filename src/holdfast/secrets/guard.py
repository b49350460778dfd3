"""Remove secrets from messages. Redaction processes each text first. The guard then processes the result.

The guard's action is `redact`, `warn` (only log a warning), or `block`. Only text that a client writes can be blocked: user messages,
system messages, and a session's own fields. Replies of models and results of tools cannot be blocked: they exist already, and clients send
them again with the next turn. If the action is `block`, secrets in them are redacted instead, and a warning is logged.

Ids (of sessions, users, tool calls and models) are not searched, because they are compared byte for byte. Media are not searched either.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from holdfast.domain.messages import Content, Message, Part, ToolCall
from holdfast.errors import HoldfastError, SecretBlocked
from holdfast.secrets.redactor import RedactionSettings, Redactor, make_redactor, make_redactor_for
from holdfast.secrets.rules import CREDENTIALS

_log = logging.getLogger("holdfast.secrets")
Action = Literal["block", "redact", "warn"]
_BLOCKABLE: Final = frozenset({"user", "system", "developer"})
"""Roles of the messages that can be blocked."""
_STORED: Final = "a secret was stored"
_FORCED: Final = "a secret that could not be blocked was redacted"


class GuardSettings(Protocol):
    """Settings of the guard in the configuration section `secret_guard`; see docs/secrets.md."""

    @property
    def enabled(self) -> bool:
        """False: the guard is off."""

    @property
    def on_secret(self) -> Action:
        """Action if a secret is found."""

    @property
    def exclude_rules(self) -> Sequence[str]:
        """Ids of built-in rules that are not used."""


class Finding(NamedTuple):
    """Describes the secrets of one rule in one field: the rule, the action, and the path of the field. It never contains a secret."""

    rule: str
    action: Action
    place: str
    """Path of the field, such as `messages[0].content`."""
    forced: bool = False
    """True if the secrets should have been blocked, but could not be, and were redacted."""
    times: int = 1
    """Number of secrets."""


class Guard:
    """Applies redaction and the guard's action to messages and other values.

    Attributes:
        counts: number of secrets in text that was stored or blocked, by rule and action.

    Args:
        redaction: replaces secrets before the guard's action applies; None: no redaction.
        watch: finds the secrets to which `action` applies; None: the action applies to none.
        action: the guard's action for the secrets that `watch` finds.
    """

    def __init__(
        self, redaction: Redactor | None = None, watch: Redactor | None = None, action: Action = "block"
    ) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.redaction = redaction
        self.watch = watch
        self.action = action

    @property
    def is_blocking(self) -> bool:
        """True if requests with secrets are blocked."""
        return self.watch is not None and self.action == "block"

    def sweep(self) -> Sweep:
        """Return a new `Sweep`, which processes the texts of one value."""
        return Sweep(self)

    def mask_messages(self, messages: Sequence[Message], *, place: str = "messages") -> tuple[Message, ...]:
        """Return messages in the form in which a log would store them, so that they can be compared with a log.

        Secrets are only counted if they are blocked.

        Args:
            messages: messages of one request.
            place: name of the list of messages, for errors.

        Raises:
            SecretBlocked: a message that can be blocked contains a secret, and the action is `block`.
        """
        if self.redaction is None and self.action == "warn":
            return tuple(messages)
        sweep = self.sweep()
        cleaned = tuple(sweep.clean_message(message, f"{place}[{at}]") for at, message in enumerate(messages))
        sweep.raise_if_blocked()
        return cleaned

    def mask_model_text(self, text: str, place: str, session_id: str) -> str:
        """Return a model's text in the form in which it may be stored. Count its secrets, and log warnings as `record` does.

        Args:
            text: the text.
            place: name of the text, for the log.
            session_id: id of the session, for the log.
        """
        sweep = self.sweep()
        cleaned = sweep.clean_text(text, place, sent=False)
        self.record(sweep.findings, session_id)
        return cleaned

    def mask_text(self, text: str) -> str:
        """Replace all secrets in a text that people read, such as an error or a log line. The guard's action does not matter."""
        for redactor in (self.redaction, self.watch):
            text = redactor.redacted(text) if redactor else text
        return text

    def mask_value(self, value: Any) -> Any:
        """Replace all secrets in a JSON value. The guard's action does not matter."""
        for redactor in (self.redaction, self.watch):
            value = redactor.redacted_value(value) if redactor else value
        return value

    @contextmanager
    def mask_errors(self) -> Iterator[None]:
        """Mask secrets in the messages of errors that the `with` block raises."""
        try:
            yield
        except HoldfastError as exc:
            exc.args = tuple(self.mask_text(arg) if isinstance(arg, str) else arg for arg in exc.args)
            param = getattr(exc, "param", None)
            if isinstance(param, str):
                exc.param = self.mask_text(param)  # type: ignore[attr-defined]  # the attribute exists
            raise

    def record(self, findings: Sequence[Finding], session_id: str) -> None:
        """Count the secrets of a text that was stored.

        Log a warning for a secret if it was stored because the action is `warn`, or redacted because it could not be blocked.
        """
        for finding in findings:
            self.counts[finding.rule, finding.action] += finding.times
            if finding.action == "warn" or finding.forced:
                text = _STORED if finding.action == "warn" else _FORCED
                fields = {"session_id": session_id, "rule": finding.rule, "place": finding.place}
                _log.warning(text, extra={"fields": {**fields, "action": finding.action}})


class Sweep:
    """Applies a guard to the texts of one value, and collects the secrets that it finds.

    Attributes:
        findings: the secrets that were found.
    """

    def __init__(self, guard: Guard) -> None:
        self.findings: list[Finding] = []
        self._guard = guard

    def raise_if_blocked(self) -> None:
        """Raise `SecretBlocked` if a secret was found to which the action `block` applies. Count these secrets."""
        blocked = [finding for finding in self.findings if finding.action == "block"]
        if blocked:
            for finding in blocked:
                self._guard.counts[finding.rule, finding.action] += finding.times
            raise SecretBlocked(list(dict.fromkeys((finding.rule, finding.place) for finding in blocked)))

    @staticmethod
    def can_block(message: Message) -> bool:
        """Return True if a message can be blocked: a user or system message, which the client has written."""
        return message.role in _BLOCKABLE

    def clean_text(self, text: str, place: str, *, sent: bool) -> str:
        """Return a text without secrets.

        If the action is `warn`, secrets that only the guard finds remain in the text.

        Args:
            text: the text.
            place: path of the text, for findings.
            sent: True if the text can be blocked, because the client has written it.
        """
        return text and self._apply(Redactor.redacted, text, place, sent)

    def clean_value(self, value: Any, place: str, *, sent: bool, media: bool = False) -> Any:
        """Return a JSON value without secrets, as `clean_text` does. Return the same object if it has none.

        `media` is True if the value may contain base64 media, which are not searched.
        """
        if not value:
            return value
        return self._apply(partial(Redactor.redacted_value, media=media), value, place, sent)

    def clean_message(self, message: Message, place: str) -> Message:
        """Return a message without secrets, or the same object if it has none."""
        sent = self.can_block(message)
        changed = {
            "content": self._clean_content(message.content, f"{place}.content", sent),
            "tool_calls": self._clean_calls(message.tool_calls, f"{place}.tool_calls", sent),
            "name": self.clean_text(message.name or "", f"{place}.name", sent=sent) or message.name,
            "extra": self.clean_value(message.extra, place, sent=sent, media=True),
            "origin": self.clean_value(message.origin, f"{place}.origin", sent=sent, media=True),
        }
        same = all(value is getattr(message, name) for name, value in changed.items())
        return message if same else message.evolve(**changed)

    # -- internals ---------------------------------------------------------

    def _clean_content(self, content: Content, place: str, sent: bool) -> Content:  # noqa: FBT001 - as in all methods below
        if isinstance(content, str):
            return self.clean_text(content, place, sent=sent)
        if not isinstance(content, tuple):
            return content
        parts = tuple(self._clean_part(part, f"{place}[{at}]", sent) for at, part in enumerate(content))
        return content if _are_same(parts, content) else parts

    def _clean_part(self, part: Part, place: str, sent: bool) -> Part:  # noqa: FBT001
        kind = self.clean_text(part.type, f"{place}.type", sent=sent)
        text = part.text and self.clean_text(part.text, f"{place}.text", sent=sent)
        extra = self.clean_value(part.extra, place, sent=sent, media=True)
        if kind is part.type and text is part.text and extra is part.extra:
            return part
        return msgspec.structs.replace(part, type=kind, text=text, extra=extra)

    def _clean_calls(self, calls: tuple[ToolCall, ...], place: str, sent: bool) -> tuple[ToolCall, ...]:  # noqa: FBT001
        cleaned = tuple(self._clean_call(call, f"{place}[{at}]", sent) for at, call in enumerate(calls))
        return calls if _are_same(cleaned, calls) else cleaned

    def _clean_call(self, call: ToolCall, place: str, sent: bool) -> ToolCall:  # noqa: FBT001
        name = self.clean_text(call.name, f"{place}.name", sent=sent)
        arguments = call.arguments and self._apply(Redactor.redacted_json, call.arguments, f"{place}.arguments", sent)
        kind = self.clean_text(call.type, f"{place}.type", sent=sent)
        extra, more = (self.clean_value(fields, place, sent=sent) for fields in (call.extra, call.function_extra))
        cleaned_call = ToolCall(call.id, name, arguments, kind, extra, more)
        return call if cleaned_call == call else cleaned_call

    def _apply(self, process: _Process, value: Any, place: str, sent: bool) -> Any:  # noqa: FBT001
        """Apply the method `process` of `Redactor` to a value: first with the redactor of redaction, then with that of the guard."""
        guard = self._guard
        if guard.redaction is not None:
            value = self._process(process, guard.redaction, value, Finding("", "redact", place))
        if guard.watch is None:
            return value
        forced = guard.action == "block" and not sent
        action: Action = "redact" if forced else guard.action
        cleaned = self._process(process, guard.watch, value, Finding("", action, place, forced))
        return value if action == "warn" else cleaned

    def _process(self, process: _Process, redactor: Redactor, value: Any, template: Finding) -> Any:
        found: Counter[str] = Counter()
        cleaned = process(redactor, value, found)
        self.findings += [template._replace(rule=rule, times=times) for rule, times in found.items()]
        return cleaned


_Process = Callable[[Redactor, Any, Counter[str]], Any]


def _are_same(new: Sequence[object], old: Sequence[object]) -> bool:
    return all(one is other for one, other in zip(new, old, strict=True))


def make_guard(redaction: RedactionSettings, secret_guard: GuardSettings | None) -> Guard | None:
    """Create the guard for the configuration. Return None if redaction and the guard are both off. It raises as `make_redactor` does.

    The guard checks what redaction leaves. So `redaction.rules` does not apply to it: a short list of rules for redaction must not turn off
    the search for other credentials. The patterns of `redaction` apply even if redaction is off.
    """
    redaction_redactor, watch = make_redactor_for(redaction), None
    if secret_guard is not None and secret_guard.enabled:
        watch = make_redactor(
            patterns=redaction.patterns,
            exclude_rules=secret_guard.exclude_rules,
            everything=CREDENTIALS,
        )
    if redaction_redactor is None and watch is None:
        return None
    return Guard(redaction_redactor, watch, "block" if secret_guard is None else secret_guard.on_secret)
