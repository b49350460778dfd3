"""What happens to sessions and secrets: the keys `hooks`, `redaction` and `secret_guard`."""

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
    """One rule of the user's own: what matches is a secret."""

    regex: Secret
    """Only its group `secret`, where there is one."""
    label: str
    """What stands in its place: `[REDACTED:label]`."""

    def find_mistakes(self) -> list[Mistake]:
        return find_problems(self.regex, self.label)


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

    def find_mistakes(self) -> list[Mistake]:
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

    def find_mistakes(self) -> list[Mistake]:
        return _rule_mistakes(self)


def _rule_mistakes(settings: Redaction | SecretGuard) -> list[Mistake]:
    named = [
        (key, message) for key in ("rules", "exclude_rules") for _, message in find_unknown(getattr(settings, key))
    ]
    count = len(settings.patterns)
    return named + [("patterns", f"{count} are too many; there may be {PATTERNS}")] * (count > PATTERNS)


class WorkspaceGit(Settings, frozen=True, kw_only=True):
    """A folder with a git repository for each agent."""

    enabled: bool = True
    """False: there are none. The key alone, or `true` in place of the mapping, turns them on."""
    path: Text = "workspaces"
    """The folder that they are in."""
    on_secret: Literal["block", "warn"] = "block"  # noqa: S105 - what happens, no password
    """A secret in what is to be committed refuses the commit, or is only told of in the log."""

    def find_mistakes(self) -> list[Mistake]:
        return [("path", "no path has a NUL in it")] * ("\0" in self.path)


Ends = Annotated[tuple[Literal["ttl", "cap", "delete", "close", "shutdown"], ...], Meta(extra={"form": "names"})]
"""Why a session ended; one may stand without a list around it."""


class TranscriptSettings(Settings, frozen=True, kw_only=True):
    """How transcripts are written."""

    fsync: Literal["never", "end", "always"] = "end"
    """When the disk is waited for: never, at a session's end, with every write."""
    redaction: Redaction | None = None
    """Unset: the top level's."""


class WebhookSettings(Settings, frozen=True, kw_only=True):
    """Somebody who is posted what was said when a session ends."""

    url: Url
    """Who is posted to."""
    secret: Secret
    """What signatures are made with."""
    events: Ends = ("ttl", "cap", "close", "delete")
    """The ends it is told of."""
    include_sha1: bool = False
    """Whether `Agora-Signature` is sent too."""
    timeout: Timeout = TIMEOUT
    """Seconds for the whole call."""
    max_history: Most | None = None
    """Newest messages that are sent; unset: all."""
    headers: dict[str, Secret] = {}
    """Sent with every call."""
    name: Text | None = None
    """By which what is left to be told is recorded; unset: made of the URL."""

    def find_mistakes(self) -> list[Mistake]:
        found = check_headers(self.headers)
        if self.name is not None and len(self.name.encode()) > ID_BYTES:
            found.append(("name", f"has more than {ID_BYTES} bytes"))
        try:
            Webhook(self.url, self.secret)
        except InvalidRequest as error:
            found.append((error.param or "url", str(error)))
        return found + [("events", "is empty; leave it out, or name some")] * (not self.events)


class Hooks(Settings, frozen=True, kw_only=True):
    """Who is told of what becomes of sessions."""

    transcripts_dir: Text | None = None
    """Where transcripts are written; unset: none are."""
    transcripts: TranscriptSettings = TranscriptSettings()
    workspace_git: WorkspaceGit | None = None
    """Unset: agents have no workspaces."""
    webhooks: tuple[WebhookSettings, ...] = ()

    def find_mistakes(self) -> list[Mistake]:
        names = Counter(webhook.name or webhook.url for webhook in self.webhooks)
        found = [("webhooks", "several have the same url or name; give each a `name`")] * any(
            count > 1 for count in names.values()
        )
        # Others may be registered besides.
        most = HOOKS // 2
        return found + [("webhooks", f"{len(self.webhooks)} are too many; there may be {most}")] * (
            len(self.webhooks) > most
        )
