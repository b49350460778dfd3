"""Check that the configured models can be reached and accept their API keys. Keys are never printed."""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec

from holdfast.cli.doctor.finding import Finding, fail, ok, warn
from holdfast.cli.terminal import format_line
from holdfast.models.anthropic import make_headers, normalize_path

if TYPE_CHECKING:
    from holdfast.config.llms import LLMSettings
    from holdfast.config.model import Config

CHECK = "upstream"
TIMEOUT_SECONDS = 3.0
"""Time limit for connecting, and again for receiving the first line of the response."""
HOME_TIMEOUT_SECONDS = 1.0
HOME_BYTES = 4096
_OFFLINE = "set OPENAI_API_KEY, OPENAI_BASE_URL or ANTHROPIC_API_KEY, or `llms` in holdfast.yaml, to use a model"


def check_upstreams(config: Config) -> Iterator[Finding]:
    """Check all configured endpoints in parallel, and yield one finding for each."""
    endpoints = _list_endpoints(config)
    if not endpoints:
        yield warn(CHECK, "no model is configured: the built-in offline model answers", _OFFLINE)
        return
    found: dict[int, Finding] = {}
    threads = []
    for at, place in enumerate(endpoints):
        # Daemon threads do not delay the end of the process: a DNS lookup has no timeout.
        check = partial(lambda at, *place: found.update({at: _check_endpoint(*place)}), at, *place)
        threads.append(threading.Thread(target=check, daemon=True))
        threads[-1].start()
    for at, place in enumerate(endpoints):
        threads[at].join(3 * TIMEOUT_SECONDS)
        silent = f"{_format_endpoint(*place)} did not answer"
        yield found.get(at) or fail(CHECK, silent, "check the name and the network")


def _list_endpoints(config: Config) -> list[tuple[list[str], LLMSettings]]:
    """Return all configured endpoints, each with the names of the models that use the endpoint.

    Models with the same URL, key and headers share an entry. For a fallback, the name includes the models that it replaces.
    """
    from holdfast.config.resolve import resolve_llm

    for_whom: dict[str, list[str]] = {}
    for name, entry in config.llms.items():
        for fallback in entry.fallbacks:
            if fallback != name:
                for_whom.setdefault(fallback, []).append(name)
    agents = (agent.llm for agent in config.agents.values() if agent.llm)
    names = dict.fromkeys(["default", *config.llms, *agents, *for_whom])
    endpoints: dict[tuple[Any, ...], tuple[list[str], LLMSettings]] = {}
    for name in names:
        llm = resolve_llm(config, name)
        if llm.provider != "offline":
            key = (llm.base_url, llm.api_key, tuple(llm.headers.items()))
            stands_in = f" for {' and '.join(for_whom[name])}" if name in for_whom else ""
            endpoints.setdefault(key, ([], llm))[0].append(f"{name}{stands_in}")
    return list(endpoints.values())


def _format_endpoint(names: list[str], llm: LLMSettings) -> str:
    from holdfast.domain.profiles import find_profile
    from holdfast.sections import mask_url

    key = "with a key" if llm.api_key else "without a key"
    profile = ""
    if llm.provider == "openai" and llm.api == "chat":
        profile = f"; profile {llm.profile or find_profile(llm.base_url).name}"
    return f"{mask_url(llm.base_url)} ({format_line(', '.join(names), 60)}; {key}{profile})"


def _check_endpoint(names: list[str], llm: LLMSettings) -> Finding:
    where = _format_endpoint(names, llm)
    try:
        status = _fetch_status(llm)
    except OSError as error:
        reason = error.reason if isinstance(error, URLError) else error
        words = str(reason)
        if isinstance(reason, TimeoutError):
            words = f"no answer within {TIMEOUT_SECONDS:g} s"
        elif isinstance(reason, OSError):
            words = reason.strerror or type(reason).__name__
        remedy = f"start it, or correct base_url ({llm.origin})"
        return fail(CHECK, f"{where} cannot be reached: {format_line(words)}", remedy)
    except (ValueError, http.client.HTTPException) as error:
        # Without the text: it may quote the header with the key.
        remedy = "check base_url and the characters of the key"
        return fail(CHECK, f"{where} does not speak HTTP: {type(error).__name__}", remedy)
    return _judge_status(status, where, has_key=llm.api_key is not None)


def _judge_status(status: int, where: str, *, has_key: bool) -> Finding:
    if status < 300:
        return ok(CHECK, f"{where} answers")
    if status in (401, 403):
        problem, change = ("rejects the key", "set another one") if has_key else ("requires a key", "set one")
        remedy = f"{change}: api_key of the llm, or its environment variable, like OPENAI_API_KEY"
        return fail(CHECK, f"{where} {problem} ({status})", remedy)
    if status < 400:
        return warn(CHECK, f"{where} redirects ({status})", "set base_url to the target: redirects are not followed")
    if status in (404, 405):
        remedy = "some servers have none; otherwise base_url lacks a version, like /v1"
        return warn(CHECK, f"{where} has no /models ({status})", remedy)
    return warn(CHECK, f"{where} answers {status}", "it may be overloaded or down: try again later")


class _NoRedirect(HTTPRedirectHandler):
    """Handles redirects by not following them, so that the key is sent only to the configured host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return None, so that the redirect itself is the result of the request."""


def is_holdfast_server(base_url: str) -> bool:
    """Return True if the home page at an address says that it is a Holdfast server. Wait at most a second for the answer.

    No request is sent to the addresses of OpenAI and Anthropic.
    """
    from holdfast.config.resolve import ANTHROPIC_URL, OPENAI_URL

    if not base_url or base_url in (OPENAI_URL, ANTHROPIC_URL):
        return False
    found: list[bool] = []
    # A daemon thread, because a DNS lookup has no timeout.
    thread = threading.Thread(target=lambda: found.append(_has_holdfast_home(base_url)), daemon=True)
    thread.start()
    thread.join(HOME_TIMEOUT_SECONDS)
    return any(found)


def _has_holdfast_home(base_url: str) -> bool:
    parts = urlsplit(base_url)
    path = parts.path.rstrip("/").removesuffix("/v1") + "/"
    request = Request(  # noqa: S310  # http(s), as configured
        urlunsplit((parts.scheme, parts.netloc, path, "", "")),
        headers={"user-agent": "holdfast", "accept": "application/json"},
    )
    try:
        with build_opener(_NoRedirect).open(request, timeout=HOME_TIMEOUT_SECONDS) as response:
            home = msgspec.json.decode(response.read(HOME_BYTES))
    except (OSError, ValueError, http.client.HTTPException):
        return False
    return isinstance(home, dict) and home.get("name") == "holdfast" and "sessions" in home


def check_server(url: str) -> Iterator[Finding]:
    """Yield a finding for each llm of a running server: its profile, and what refusals have changed in it."""
    from holdfast.sections import mask_url

    where, key = mask_url(url), os.environ.get("HOLDFAST_KEY")
    headers = {"accept": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    remedy = "set HOLDFAST_KEY to a key of the server that may read" if key is None else "check HOLDFAST_KEY"
    try:
        request = Request(f"{url.rstrip('/').removesuffix('/v1')}/v1/status", headers=headers)  # noqa: S310  # as given
        with build_opener(_NoRedirect).open(request, timeout=TIMEOUT_SECONDS) as response:
            models = msgspec.json.decode(response.read())["models"]
    except HTTPError as error:
        error.close()
        yield fail(CHECK, f"{where} answers {error.code}", remedy)
    except (OSError, ValueError, http.client.HTTPException, KeyError, TypeError):
        yield fail(CHECK, f"{where} is no Holdfast server that can be reached", "start it, or correct the address")
    else:
        for model in models:
            learned = f"; learned: {'; '.join(model['learned'])}" if model["learned"] else ""
            about = f"{model['name']} ({model['model']}): profile {model['profile']}, chosen by {model['chosen_by']}"
            yield ok(CHECK, f"{about}{learned}")


def _fetch_status(llm: LLMSettings) -> int:
    """Send `GET /models` to an endpoint, and return the HTTP status. The body is not read."""
    parts = urlsplit(llm.base_url)
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    access = {"authorization": f"Bearer {llm.api_key}"} if llm.api_key else {}
    if llm.provider == "anthropic":
        path = normalize_path(path)
        access = make_headers(parts.hostname or "", llm.api_key)
    url = urlunsplit((parts.scheme, parts.netloc, f"{path}/models", parts.query, ""))
    request = Request(url, headers={"user-agent": "holdfast", **access, **llm.headers})  # noqa: S310  # http(s), as configured
    try:
        with build_opener(_NoRedirect).open(request, timeout=TIMEOUT_SECONDS) as response:
            return int(response.status)
    except HTTPError as error:
        error.close()
        return error.code
