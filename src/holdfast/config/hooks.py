"""Who is told of sessions: the key `hooks`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from msgspec import Meta

from holdfast.config.kinds import Mistake, Most, Secret, Settings, Text, Timeout, Url, header_mistakes
from holdfast.config.secrets import Redaction
from holdfast.config.workspace import WorkspaceGit
from holdfast.errors import InvalidRequest
from holdfast.hooks.base import Hook
from holdfast.hooks.transcripts import Transcripts
from holdfast.hooks.webhook import TIMEOUT, Webhook
from holdfast.limits import HOOKS, ID_BYTES
from holdfast.secrets import Redactor, redactor_of

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

    def mistakes(self) -> list[Mistake]:
        found = header_mistakes(self.headers)
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

    def mistakes(self) -> list[Mistake]:
        names = Counter(webhook.name or webhook.url for webhook in self.webhooks)
        found = [("webhooks", "several have the same url or name; give each a `name`")] * any(
            count > 1 for count in names.values()
        )
        # Others may be registered besides.
        most = HOOKS // 2
        return found + [("webhooks", f"{len(self.webhooks)} are too many; there may be {most}")] * (
            len(self.webhooks) > most
        )


def hooks_of(settings: Hooks, redaction: Redaction) -> list[Hook]:
    """The hooks that the configuration asks for; transcripts first, since a webhook may take its time.

    Raises:
        MissingExtra: the built-in rules of a redaction need an extra.
    """
    redactor, hooks = redactor_of(redaction), list[Hook]()
    if settings.transcripts_dir is not None:
        written = settings.transcripts
        own = redactor if written.redaction is None else redactor_of(written.redaction)
        hooks.append(Transcripts(settings.transcripts_dir, redactor=own, fsync=written.fsync))
    hooks += [_webhook(webhook, redactor) for webhook in settings.webhooks]
    return hooks


def _webhook(settings: WebhookSettings, redactor: Redactor | None) -> Webhook:
    return Webhook(
        settings.url,
        settings.secret,
        events=settings.events,
        include_sha1=settings.include_sha1,
        timeout=settings.timeout,
        max_history=settings.max_history,
        headers=settings.headers,
        name=settings.name,
        redactor=redactor,
    )
