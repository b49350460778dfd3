"""Define the keys `hooks`, `redaction` and `secret_guard`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from holdfast.errors import InvalidRequest
from holdfast.hooks.webhook import TIMEOUT, Webhook
from holdfast.limits import HOOKS, ID_BYTES, PATTERNS
from holdfast.secrets.rules import ALL, find_problems, find_unknown
from holdfast.settings import Mistake, Most, Names, Secret, Settings, Text, Timeout, Url, check_headers


class SecretPattern(Settings, frozen=True, kw_only=True):
    """A user's rule: what matches is a secret."""

    regex: Secret
    """Regular expression. If it has a group `secret`, only that group is the secret."""
    label: str
    """Label in the replacement: `[REDACTED:label]`."""

    def find_mistakes(self) -> list[Mistake]:
        return find_problems(self.regex, self.label)


class Redaction(Settings, frozen=True, kw_only=True):
    """Replaces secrets before anything is stored."""

    ALIASES: ClassVar[dict[str, str]] = {"extra_patterns": "patterns"}

    enabled: bool = False
    """Replace secrets."""
    use_builtins: bool = True
    """Use the built-in rules, too."""
    patterns: tuple[SecretPattern, ...] = ()
    """Your own rules."""
    rules: Names = (ALL,)
    """Built-in rules; `all`: every one."""
    exclude_rules: Names = ()
    """Built-in rules to exclude."""

    def find_mistakes(self) -> list[Mistake]:
        return _find_rule_mistakes(self)


class SecretGuard(Settings, frozen=True, kw_only=True):
    """Treatment of secrets that redaction leaves."""

    enabled: bool = True
    """Search for secrets."""
    on_secret: Literal["block", "redact", "warn"] = "block"  # noqa: S105 - an action, not a password
    """Action for secrets: block the request, redact the secret, or only log a warning."""
    rules: Names = (ALL,)
    """Built-in rules; `all`: every rule that finds credentials."""
    exclude_rules: Names = ()
    """Built-in rules to exclude."""
    patterns: tuple[SecretPattern, ...] = ()
    """Your own rules."""

    def find_mistakes(self) -> list[Mistake]:
        return _find_rule_mistakes(self)


def _find_rule_mistakes(settings: Redaction | SecretGuard) -> list[Mistake]:
    named = [
        (key, message) for key in ("rules", "exclude_rules") for _, message in find_unknown(getattr(settings, key))
    ]
    count = len(settings.patterns)
    return named + [("patterns", f"{count} are too many; at most {PATTERNS} are allowed")] * (count > PATTERNS)


class WorkspaceGit(Settings, frozen=True, kw_only=True):
    """A folder with a git repository for each agent."""

    enabled: bool = True
    """False: no workspaces. The key alone, or `true` in place of the mapping, enables them."""
    path: Text = "workspaces"
    """Folder of the workspaces."""
    on_secret: Literal["block", "warn"] = "block"  # noqa: S105 - an action, not a password
    """Reject a commit that contains a secret (`block`), or only log a warning (`warn`)."""

    def find_mistakes(self) -> list[Mistake]:
        return [("path", "a path must not contain a NUL character")] * ("\0" in self.path)


Ends = Annotated[tuple[Literal["ttl", "cap", "delete", "close", "shutdown"], ...], Meta(extra={"form": "names"})]
"""Reasons why a session ended; a single one needs no list."""


class TranscriptSettings(Settings, frozen=True, kw_only=True):
    """Writing of transcripts."""

    fsync: Literal["never", "end", "always"] = "end"
    """When to sync to disk: never, at the end of a session, or after every write."""
    redaction: Redaction | None = None
    """Unset: the top-level `redaction`."""


class WebhookSettings(Settings, frozen=True, kw_only=True):
    """A receiver of the conversation when a session ends."""

    url: Url
    """URL to which it is posted."""
    secret: Secret
    """Key for signatures."""
    events: Ends = ("ttl", "cap", "close", "delete")
    """Reasons of session ends that are posted."""
    include_sha1: bool = False
    """Also send `Agora-Signature`."""
    timeout: Timeout = TIMEOUT
    """Maximum seconds of the whole call."""
    max_history: Most | None = None
    """Number of newest messages to send; unset: all."""
    headers: dict[str, Secret] = {}
    """Headers of every call."""
    name: Text | None = None
    """Name under which pending calls are stored; unset: derived from the URL."""

    def find_mistakes(self) -> list[Mistake]:
        found = check_headers(self.headers)
        if self.name is not None and len(self.name.encode()) > ID_BYTES:
            found.append(("name", f"has more than {ID_BYTES} bytes"))
        try:
            Webhook(self.url, self.secret)
        except InvalidRequest as error:
            found.append((error.param or "url", str(error)))
        return found + [("events", "is empty; remove it or add events")] * (not self.events)


class Hooks(Settings, frozen=True, kw_only=True):
    """Actions on events of sessions."""

    transcripts_dir: Text | None = None
    """Folder of transcripts; unset: none are written."""
    transcripts: TranscriptSettings = TranscriptSettings()
    workspace_git: WorkspaceGit | None = None
    """Unset: agents have no workspaces."""
    webhooks: tuple[WebhookSettings, ...] = ()

    def find_mistakes(self) -> list[Mistake]:
        names = Counter(webhook.name or webhook.url for webhook in self.webhooks)
        found = [("webhooks", "several have the same URL or name; give each its own `name`")] * any(
            count > 1 for count in names.values()
        )
        # Programs may register further hooks.
        most = HOOKS // 2
        return found + [("webhooks", f"{len(self.webhooks)} are too many; at most {most} are allowed")] * (
            len(self.webhooks) > most
        )
