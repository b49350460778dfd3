"""What is done about secrets: the keys `redaction` and `secret_guard`."""

from __future__ import annotations

from typing import ClassVar, Literal

from holdfast.config.kinds import Mistake, Names, Secret, Settings
from holdfast.limits import PATTERNS
from holdfast.secrets.patterns import ALL, trouble, unknown


class SecretPattern(Settings, frozen=True, kw_only=True):
    """One rule of the user's own: what matches is a secret."""

    regex: Secret
    """Only its group `secret`, where there is one."""
    label: str
    """What stands in its place: `[REDACTED:label]`."""

    def mistakes(self) -> list[Mistake]:
        return trouble(self.regex, self.label)


class Redaction(Settings, frozen=True, kw_only=True):
    """Secrets that are replaced before anything is stored."""

    ALIASES: ClassVar[dict[str, str]] = {"extra_patterns": "patterns"}

    enabled: bool = False
    """Whether anything is taken out."""
    use_builtins: bool = True
    """Whether the built-in rules hold too."""
    patterns: tuple[SecretPattern, ...] = ()
    """Rules of your own."""
    rules: Names = (ALL,)
    """Built-in rules; `all`: every one."""
    exclude_rules: Names = ()
    """Built-in rules that do not hold."""

    def mistakes(self) -> list[Mistake]:
        return _rule_mistakes(self)


class SecretGuard(Settings, frozen=True, kw_only=True):
    """What happens to secrets that redaction leaves."""

    enabled: bool = True
    """Whether anything is looked for."""
    on_secret: Literal["block", "redact", "warn"] = "block"  # noqa: S105 - what happens, no password
    """Whether what holds one is refused, or it is replaced, or only told."""
    rules: Names = (ALL,)
    """Built-in rules; `all`: every one of those that find credentials."""
    exclude_rules: Names = ()
    """Built-in rules that do not hold."""
    patterns: tuple[SecretPattern, ...] = ()
    """Rules of your own."""

    def mistakes(self) -> list[Mistake]:
        return _rule_mistakes(self)


def _rule_mistakes(settings: Redaction | SecretGuard) -> list[Mistake]:
    named = [(key, message) for key in ("rules", "exclude_rules") for _, message in unknown(getattr(settings, key))]
    count = len(settings.patterns)
    return named + [("patterns", f"{count} are too many; there may be {PATTERNS}")] * (count > PATTERNS)
