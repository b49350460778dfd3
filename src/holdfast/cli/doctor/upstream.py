"""The models that are configured: whether they can be reached, and take the key. No key is ever shown."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from holdfast.cli.doctor.finding import Finding, fail, ok, warn
from holdfast.cli.terminal import line
from holdfast.models import anthropic_access

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.config.llms import LLMSettings

CHECK = "upstream"
SECONDS = 3.0
"""For each step of a look: to connect, and to the first line of the answer."""
_OFFLINE = "set OPENAI_API_KEY, OPENAI_BASE_URL or ANTHROPIC_API_KEY, or `llms` in holdfast.yaml, for a real one"


def findings(config: Config) -> Iterator[Finding]:
    """One for each place that is configured; all are asked at once."""
    places = _places(config)
    if not places:
        yield warn(CHECK, "no model is configured: the built-in offline model answers, no language model", _OFFLINE)
        return
    found: list[Finding | None] = [None] * len(places)

    def look(at: int, names: list[str], llm: LLMSettings) -> None:
        found[at] = _asked(names, llm)

    # Threads that do not keep the process: looking up a name cannot be given a limit.
    threads = [threading.Thread(target=look, args=(at, *place), daemon=True) for at, place in enumerate(places)]
    for thread in threads:
        thread.start()
    for thread, at in zip(threads, range(len(places)), strict=True):
        thread.join(3 * SECONDS)
        names, llm = places[at]
        yield found[at] or fail(CHECK, f"{_called(names, llm)} gave no answer", "check the name and the network")


def _places(config: Config) -> list[tuple[list[str], LLMSettings]]:
    """Every address and key once, with the names of what is asked there, and of what it stands in for."""
    from holdfast.config import resolve_llm

    for_whom: dict[str, list[str]] = {}
    for name, entry in config.llms.items():
        for fallback in entry.fallbacks:
            if fallback != name:
                for_whom.setdefault(fallback, []).append(name)
    agents = (agent.llm for agent in config.agents.values() if agent.llm)
    names = dict.fromkeys(["default", *config.llms, *agents, *for_whom])
    places: dict[tuple[Any, ...], tuple[list[str], LLMSettings]] = {}
    for name in names:
        llm = resolve_llm(config, name)
        if llm.provider != "offline":
            key = (llm.base_url, llm.api_key, tuple(llm.headers.items()))
            stands_in = f" for {' and '.join(for_whom[name])}" if name in for_whom else ""
            places.setdefault(key, ([], llm))[0].append(f"{name}{stands_in}")
    return list(places.values())


def _called(names: list[str], llm: LLMSettings) -> str:
    from holdfast.settings import mask_url

    key = "with a key" if llm.api_key else "without a key"
    return f"{mask_url(llm.base_url)} ({line(', '.join(names), 60)}; {key})"


def _asked(names: list[str], llm: LLMSettings) -> Finding:
    where = _called(names, llm)
    try:
        return _judged(_status(llm), where, has_key=llm.api_key is not None)
    except URLError as error:
        return fail(CHECK, f"{where} cannot be reached: {_reason(error.reason)}", _unreachable(llm))
    except OSError as error:
        return fail(CHECK, f"{where} cannot be reached: {_reason(error)}", _unreachable(llm))
    except (ValueError, http.client.HTTPException) as error:
        # Without its text: it may quote the header that holds the key.
        return fail(
            CHECK, f"{where} does not answer in HTTP: {type(error).__name__}", "check base_url and the key's characters"
        )


def _reason(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return f"no answer within {SECONDS:g} s"
    return line(
        getattr(reason, "strerror", None) or type(reason).__name__ if isinstance(reason, OSError) else str(reason)
    )


def _unreachable(llm: LLMSettings) -> str:
    return f"start it, or set base_url right ({llm.origin})"


def _judged(status: int, where: str, *, has_key: bool) -> Finding:
    if status < 300:
        return ok(CHECK, f"{where} answers")
    if status in (401, 403):
        said, remedy = ("refuses the key", "set another") if has_key else ("wants a key", "set one")
        return fail(
            CHECK, f"{where} {said} ({status})", f"{remedy}: api_key of the llm, or its variable, like OPENAI_API_KEY"
        )
    if status < 400:
        return warn(
            CHECK, f"{where} redirects ({status})", "set base_url to where it leads: redirects are not followed"
        )
    if status in (404, 405):
        return warn(
            CHECK, f"{where} has no /models ({status})", "some have none; else base_url lacks its version, like /v1"
        )
    return warn(CHECK, f"{where} answers {status}", "it may be overloaded or down: try again later")


class _NoRedirect(HTTPRedirectHandler):
    """A key goes where it was meant to go, and nowhere else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """None: the answer stands as it is."""


def _status(llm: LLMSettings) -> int:
    """The status of `GET /models`; the answer itself is not read."""
    parts = urlsplit(llm.base_url)
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    sent = {"user-agent": "holdfast", **({"authorization": f"Bearer {llm.api_key}"} if llm.api_key else {})}
    if llm.provider == "anthropic":
        path, sent = (
            anthropic_access.path_of(path),
            {"user-agent": "holdfast", **anthropic_access.headers_of(parts.hostname or "", llm.api_key)},
        )
    path, sent = f"{path}/models", {**sent, **llm.headers}
    request = Request(urlunsplit((parts.scheme, parts.netloc, path, parts.query, "")), headers=sent)  # noqa: S310  # http(s), as configured
    try:
        with build_opener(_NoRedirect).open(request, timeout=SECONDS) as response:
            return int(response.status)
    except HTTPError as error:
        error.close()
        return error.code
