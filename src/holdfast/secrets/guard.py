"""Messages without secrets: every text of a message goes through redaction first, and what that leaves through the guard.

What the guard does is `redact`, `warn` (nothing but telling), or `block`. Only what somebody sends can be refused: a user's
message, a system message, a session's own fields. What a model said or a tool returned has happened already; a client resends it
with the next turn, too. In those a secret is redacted, and a warning is logged.

Ids (of sessions, users, tool calls, models) are no texts: they are compared byte for byte, and are not looked at. Nor are media.
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
from holdfast.secrets.redactor import Redactor, make_redactor, redactor_of
from holdfast.secrets.redactor import Settings as RedactionSettings
from holdfast.secrets.rules import CREDENTIALS

_log = logging.getLogger("holdfast.secrets")
Action = Literal["block", "redact", "warn"]
_SENT: Final = frozenset({"user", "system", "developer"})
"""Roles of messages that can be refused."""
_STORED: Final = "a secret was stored"
_FORCED: Final = "a secret that could not be refused was redacted"


class GuardSettings(Protocol):
    """What the configuration says of the guard; see docs/secrets.md."""

    @property
    def enabled(self) -> bool:
        """False: nothing is looked for."""

    @property
    def on_secret(self) -> Action:
        """What happens then."""

    @property
    def rules(self) -> Sequence[str]:
        """Built-in rules, or `all`."""

    @property
    def exclude_rules(self) -> Sequence[str]:
        """Built-in rules that do not hold."""

    @property
    def patterns(self) -> Sequence[Any]:
        """The user's own, each with `regex` and `label`."""


class Finding(NamedTuple):
    """A secret that came by: what kind, what was done, and where it was; never what it said."""

    rule: str
    action: Action
    place: str
    forced: bool = False
    """It was to be refused, and could not be."""
    times: int = 1
    """How many of the kind there were."""


class Guard:
    """What happens to secrets.

    Attributes:
        counts: what was found in what was stored, or refused, by rule and action.

    Args:
        redaction: replaces what it finds, before the guard looks; None: nothing does.
        watch: finds what `action` is about; None: nothing.
        action: what happens then.
    """

    def __init__(
        self, redaction: Redactor | None = None, watch: Redactor | None = None, action: Action = "block"
    ) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.redaction = redaction
        self.watch = watch
        self.action = action

    @property
    def refuses(self) -> bool:
        """Whether anything is refused at all."""
        return self.watch is not None and self.action == "block"

    def sweep(self) -> Sweep:
        """A new look at something."""
        return Sweep(self)

    def masked(self, messages: Sequence[Message], *, place: str = "messages") -> tuple[Message, ...]:
        """Messages as a log would have them: what is about to be compared with one. Nothing is counted.

        Args:
            messages: of one request.
            place: what errors call them.

        Raises:
            SecretBlocked: one that can be refused holds a secret, and secrets are refused.
        """
        if self.redaction is None and self.action == "warn":
            return tuple(messages)
        sweep = self.sweep()
        told = tuple(sweep.message(message, f"{place}[{at}]") for at, message in enumerate(messages))
        sweep.refuse()
        return told

    def said(self, text: str, place: str, session_id: str) -> str:
        """What a model wrote, as it may be kept; what was found is counted and told."""
        sweep = self.sweep()
        told = sweep.text(text, place, sent=False)
        self.note(sweep.findings, session_id)
        return told

    def told(self, text: str) -> str:
        """A text for people to read, an error or a line of a log, without any secret, whatever `action` is."""
        for redactor in (self.redaction, self.watch):
            text = redactor.redacted(text) if redactor else text
        return text

    def told_value(self, value: Any) -> Any:
        """The same for a JSON value."""
        for redactor in (self.redaction, self.watch):
            value = redactor.redacted_value(value) if redactor else value
        return value

    @contextmanager
    def hushed(self) -> Iterator[None]:
        """What is raised inside of the block quotes no secret."""
        try:
            yield
        except HoldfastError as exc:
            exc.args = tuple(self.told(arg) if isinstance(arg, str) else arg for arg in exc.args)
            param = getattr(exc, "param", None)
            if isinstance(param, str):
                exc.param = self.told(param)  # type: ignore[attr-defined]  # it has one
            raise

    def note(self, findings: Sequence[Finding], session_id: str) -> None:
        """Count what was stored, and tell of what ought not to have been there."""
        for finding in findings:
            self.counts[finding.rule, finding.action] += finding.times
            if finding.action == "warn" or finding.forced:
                said = _STORED if finding.action == "warn" else _FORCED
                fields = {"session_id": session_id, "rule": finding.rule, "place": finding.place}
                _log.warning(said, extra={"fields": {**fields, "action": finding.action}})


class Sweep:
    """One look at the texts of something, message by message and value by value.

    Attributes:
        findings: the secrets that were found.
    """

    def __init__(self, guard: Guard) -> None:
        self.findings: list[Finding] = []
        self._guard = guard

    def refuse(self) -> None:
        """Raise `SecretBlocked` when something was found that is to be refused."""
        blocked = [finding for finding in self.findings if finding.action == "block"]
        if blocked:
            for finding in blocked:
                self._guard.counts[finding.rule, finding.action] += finding.times
            raise SecretBlocked(list(dict.fromkeys((finding.rule, finding.place) for finding in blocked)))

    @staticmethod
    def refusable(message: Message) -> bool:
        """Whether a message can be refused: whoever sends it wrote it."""
        return message.role in _SENT

    def text(self, text: str, place: str, *, sent: bool) -> str:
        """A text without its secrets. Args: `sent`: whether it can be refused."""
        return text and self._looked(Redactor.redacted, text, place, sent)

    def json(self, text: str, place: str, *, sent: bool) -> str:
        """A JSON text, or one that ought to be, without its secrets."""
        return text and self._looked(Redactor.redacted_json, text, place, sent)

    def value(self, value: Any, place: str, *, sent: bool, media: bool = False) -> Any:
        """A JSON value without its secrets; the same object when it has none."""
        if not value:
            return value
        return self._looked(partial(Redactor.redacted_value, media=media), value, place, sent)

    def message(self, message: Message, place: str) -> Message:
        """A message without its secrets; the same object when it has none."""
        sent = self.refusable(message)
        changed = {
            "content": self._content(message.content, f"{place}.content", sent),
            "tool_calls": self._calls(message.tool_calls, f"{place}.tool_calls", sent),
            "name": self.text(message.name or "", f"{place}.name", sent=sent) or message.name,
            "extra": self.value(message.extra, place, sent=sent, media=True),
        }
        same = all(value is getattr(message, name) for name, value in changed.items())
        return message if same else message.evolve(**changed)

    # -- inside ------------------------------------------------------------

    def _content(self, content: Content, place: str, sent: bool) -> Content:  # noqa: FBT001 - as in all of these
        if isinstance(content, str):
            return self.text(content, place, sent=sent)
        if not isinstance(content, tuple):
            return content
        parts = tuple(self._part(part, f"{place}[{at}]", sent) for at, part in enumerate(content))
        return content if _same(parts, content) else parts

    def _part(self, part: Part, place: str, sent: bool) -> Part:  # noqa: FBT001
        kind = self.text(part.type, f"{place}.type", sent=sent)
        text = part.text and self.text(part.text, f"{place}.text", sent=sent)
        extra = self.value(part.extra, place, sent=sent, media=True)
        if kind is part.type and text is part.text and extra is part.extra:
            return part
        return msgspec.structs.replace(part, type=kind, text=text, extra=extra)

    def _calls(self, calls: tuple[ToolCall, ...], place: str, sent: bool) -> tuple[ToolCall, ...]:  # noqa: FBT001
        told = tuple(self._call(call, f"{place}[{at}]", sent) for at, call in enumerate(calls))
        return calls if _same(told, calls) else told

    def _call(self, call: ToolCall, place: str, sent: bool) -> ToolCall:  # noqa: FBT001
        name = self.text(call.name, f"{place}.name", sent=sent)
        arguments = self.json(call.arguments, f"{place}.arguments", sent=sent)
        kind = self.text(call.type, f"{place}.type", sent=sent)
        extra, more = (self.value(fields, place, sent=sent) for fields in (call.extra, call.function_extra))
        made = ToolCall(call.id, name, arguments, kind, extra, more)
        return call if made == call else made

    def _looked(self, look: _Look, value: Any, place: str, sent: bool) -> Any:  # noqa: FBT001
        """What `look` makes of a value, by redaction and then by the guard."""
        guard = self._guard
        if guard.redaction is not None:
            value = self._noted(look, guard.redaction, value, Finding("", "redact", place))
        if guard.watch is None:
            return value
        forced = guard.action == "block" and not sent
        action: Action = "redact" if forced else guard.action
        told = self._noted(look, guard.watch, value, Finding("", action, place, forced))
        return value if action == "warn" else told

    def _noted(self, look: _Look, redactor: Redactor, value: Any, like: Finding) -> Any:
        found: Counter[str] = Counter()
        told = look(redactor, value, found)
        self.findings += [like._replace(rule=rule, times=times) for rule, times in found.items()]
        return told


_Look = Callable[[Redactor, Any, Counter[str]], Any]


def _same(new: Sequence[object], old: Sequence[object]) -> bool:
    return all(one is other for one, other in zip(new, old, strict=True))


def guard_of(redaction: RedactionSettings | None, secret_guard: GuardSettings | None) -> Guard | None:
    """The guard that the configuration asks for; None where both are off. Raises as `make_redactor` does."""
    replaces, watch = redactor_of(redaction), None
    if secret_guard is not None and secret_guard.enabled:
        watch = make_redactor(
            patterns=secret_guard.patterns,
            rules=secret_guard.rules,
            exclude_rules=secret_guard.exclude_rules,
            everything=CREDENTIALS,
        )
    if replaces is None and watch is None:
        return None
    return Guard(replaces, watch, "block" if secret_guard is None else secret_guard.on_secret)
