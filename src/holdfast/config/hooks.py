"""Define the keys `hooks`, `redaction` and `secret_guard`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from holdfast.errors import InvalidRequest
from holdfast.hooks.webhook import Webhook
from holdfast.limits import HOOKS, PATTERNS
from holdfast.secrets.rules import ALL, find_problems, find_unknown
from holdfast.sections import Mistake, Names, Secret, Settings, Text, Url, check_headers


class SecretPattern(Settings, frozen=True, kw_only=True):
    """A custom rule: text that matches the regular expression is a secret."""

    regex: Secret
    """Regular expression. If it has a group `secret`, only that group is the secret."""
    label: str
    """Label in the text that replaces the secret: `[REDACTED:label]`."""

    def find_mistakes(self) -> list[Mistake]:
        return find_problems(self.regex, self.label)


class Redaction(Settings, frozen=True, kw_only=True):
    """Redaction of secrets before anything is stored."""

    enabled: bool = False
    """Replace secrets."""
    patterns: tuple[SecretPattern, ...] = ()
    """Your own rules."""
    rules: Names = (ALL,)
    """Names of the built-in rules to use; an empty list: none. `all`: every built-in rule."""
    exclude_rules: Names = ()
    """Names of built-in rules that are not used."""

    def find_mistakes(self) -> list[Mistake]:
        unknown = [
            (key, message) for key in ("rules", "exclude_rules") for _, message in find_unknown(getattr(self, key))
        ]
        count = len(self.patterns)
        return unknown + [("patterns", f"{count} are too many; at most {PATTERNS} are allowed")] * (count > PATTERNS)


class SecretGuard(Settings, frozen=True, kw_only=True):
    """Treatment of a credential that `redaction` has not replaced.

    All built-in rules that find credentials apply, and the patterns of `redaction`, even if redaction is disabled.
    """

    enabled: bool = True
    """Search for secrets."""
    on_secret: Literal["block", "redact", "warn"] = "block"  # noqa: S105 - an action, not a password
    """Action if a secret is found: block the request (`block`), redact the secret (`redact`), or only log a warning (`warn`)."""
    exclude_rules: Names = ()
    """Names of built-in rules that are not used."""

    def find_mistakes(self) -> list[Mistake]:
        return [("exclude_rules", message) for _, message in find_unknown(self.exclude_rules)]


class WorkspaceGit(Settings, frozen=True, kw_only=True):
    """A folder with a git repository for each agent."""

    SHORT: ClassVar[str] = "enabled"

    enabled: bool = True
    """False: agents have no workspaces. `workspace_git: true` in place of the mapping enables workspaces."""
    path: Text = "workspaces"
    """Folder that contains the workspaces."""

    def find_mistakes(self) -> list[Mistake]:
        return [("path", "a path must not contain a NUL character")] * ("\0" in self.path)


Ends = Annotated[tuple[Literal["ttl", "cap", "delete", "close", "shutdown"], ...], Meta(extra={"form": "names"})]
"""Reasons why a session ended. A single reason may be written without a list."""


class WebhookSettings(Settings, frozen=True, kw_only=True):
    """A receiver of the conversation when a session ends."""

    url: Url
    """URL to which the conversation is posted."""
    secret: Secret
    """Secret key with which calls are signed."""
    events: Ends = ("ttl", "cap", "close", "delete")
    """Reasons for the end of a session for which the conversation is posted."""
    headers: dict[str, Secret] = {}
    """Headers of every call."""

    def find_mistakes(self) -> list[Mistake]:
        found = check_headers(self.headers)
        try:
            Webhook(self.url, self.secret)
        except InvalidRequest as error:
            found.append((error.param or "url", str(error)))
        return found + [("events", "is empty; remove it or add events")] * (not self.events)


class Hooks(Settings, frozen=True, kw_only=True):
    """Actions after a turn or at the end of a session: transcripts, workspaces and webhooks."""

    transcripts_dir: Text | None = None
    """Folder of the transcripts. Unset: no transcripts are written."""
    workspace_git: WorkspaceGit | None = None
    """Workspaces of agents. Unset: agents have no workspaces."""
    webhooks: tuple[WebhookSettings, ...] = ()

    def find_mistakes(self) -> list[Mistake]:
        urls = {webhook.url for webhook in self.webhooks}
        found = [("webhooks", "several have the same URL")] * (len(urls) < len(self.webhooks))
        # Programs may register hooks, too, so the file may use only half of the allowed number.
        most = HOOKS // 2
        return found + [("webhooks", f"{len(self.webhooks)} are too many; at most {most} are allowed")] * (
            len(self.webhooks) > most
        )
