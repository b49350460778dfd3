"""Exchanges: requests and all that came of them, as a text that a person has read and that is pinned.

    @exchange(["Hello."], "sessions: {ttl: 1h}")
    async def test_a_turn(x: Exchange) -> None:
        await x.post("/v1/chat/completions", session_id="s", messages=[user("Hi.")])
        await x.rows("/v1/sessions", "id", "turns", limit=1)

The text is `pinned/MODULE/NAME.txt` beside the test: each request with its answer, what reached the scripted model, and what other
servers got. Ids that differ each time are numbered, and the clock goes on by a second with each request. `HOLDFAST_TEST_PIN=1` writes the
texts instead of comparing them; then `git diff` shows what changed, and a commit that changes a text says so.
"""

from __future__ import annotations

import difflib
import html
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import pytest

from holdfast.errors import HoldfastError
from tests.behaviour.kit.gateway import Served, gateway
from tests.behaviour.kit.receivers import Receiver, receiver
from tests.behaviour.kit.seams import run_command, settle, steady_prompts
from tests.behaviour.kit.speakers import Speakers

Scenario: TypeAlias = "Callable[[Exchange], Awaitable[None]]"
WIDTH: Final = 140
HEADERS: Final = re.compile(
    r"etag|location|retry-after|link|allow|cache-control|content-(?:type|disposition|range)|x-(?!request-id)|holdfast-|deprecation|vary|www-"
)
RANDOM: Final = re.compile(
    r"\b(?:[a-z]{2,10}[-_])?(?=[0-9a-zA-Z]*[0-9])(?=[0-9a-zA-Z]*[a-zA-Z])[0-9a-zA-Z]{16,}\b|\b[0-9a-f]{8}-[0-9a-f-]{27}\b"
    r"|(?<![0-9a-z])c?[0-9a-f]{32}(?![0-9a-z])|(?<=[0-9a-f]z)[0-9a-f]{12}(?:[0-9a-f]{20})?(?![0-9a-f])"
    r'|(?<="upstream": ")[0-9a-f]{12}|(?<="upstream":")[0-9a-f]{12}'
)
NOW: Final = re.compile(
    r"\b17[1-9]\d{10}\b|\b(?:17[1-9]|18\d)\d{7}\b|\b20(?:2[5-9]|[3-9]\d)-\d\d-\d\d[T ][0-9:.]+(?:Z|\+00:00)?"
)
"""Times of programs that have a clock of their own. That of the tests stands in 2023."""
TIMES: Final = re.compile(r'("(?:latency_ms|duration_ms|first_token_ms|ms|seconds|uptime)": )[0-9.]+')


SILENT: Final = re.compile(r"<(script|style|svg|head)\b.*?</\1>|<input[^>]*type=\"hidden\"[^>]*>", re.DOTALL)
"""Parts of a page that are not read."""
DATABASES: Final = ("memory", "postgres", "mysql")


def exchange(
    script: Any = (), *config: str, stores: Sequence[str] = ("memory",), **settings: Any
) -> Callable[[Scenario], Callable[..., Any]]:
    """Make a function a test whose exchange is pinned.

    Args:
        script, config, settings: as for `gateway`; `$HOOK` in `config` is the URL of a receiver of webhooks. A script that is a dict
            has the lines of `Speakers`.
        stores: where the same is said; `DATABASES`, or `["file"]` for scenarios that use the command line.
    """

    def add(scenario: Scenario) -> Callable[..., Any]:
        path = Path(scenario.__code__.co_filename)
        pinned = (
            path.parent / "pinned" / path.stem.removeprefix("test_") / f"{scenario.__name__.removeprefix('test_')}.txt"
        )

        @pytest.mark.parametrize("store", stores)
        async def test(store: str) -> None:
            text = await perform(scenario, script, config, {**settings, "store": store})
            if os.environ.get("HOLDFAST_TEST_PIN") and store == stores[0]:
                pinned.parent.mkdir(parents=True, exist_ok=True)
                pinned.write_text(text, encoding="utf-8")
            old = pinned.read_text(encoding="utf-8") if pinned.exists() else ""
            if old != text:
                changed = difflib.unified_diff(old.splitlines(), text.splitlines(), "pinned", "now", lineterm="", n=6)
                pytest.fail("\n".join(list(changed)[:80]), pytrace=False)

        test.__name__, test.__module__, test.__doc__ = scenario.__name__, scenario.__module__, scenario.__doc__
        return test

    return add


@dataclass
class Exchange:
    """Sends requests to a gateway, and writes down what is said."""

    served: Served
    hook: Receiver
    lines: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    async def get(self, path: str, headers: Any = None, **query: Any) -> Any:
        return await self.send("GET", path, None, query, headers)

    async def post(self, path: str, headers: Any = None, **body: Any) -> Any:
        return await self.send("POST", path, body, None, headers)

    async def put(self, path: str, headers: Any = None, **body: Any) -> Any:
        return await self.send("PUT", path, body, None, headers)

    async def patch(self, path: str, headers: Any = None, **body: Any) -> Any:
        return await self.send("PATCH", path, body, None, headers)

    async def delete(self, path: str, headers: Any = None, **query: Any) -> Any:
        return await self.send("DELETE", path, None, query, headers)

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        brief: Sequence[str] = (),
    ) -> Any:
        """Send a request: `body` is JSON, or bytes. Returns the decoded answer, or its text."""
        self.served.clock.now += 1000
        params = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in (query or {}).items()
            if value is not None
        }
        content = {} if body is None else {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = await self.served.http.request(
            method, path, params=params or None, headers=dict(headers or {}), **content
        )
        asked = path + ("?" + "&".join(f"{name}={value}" for name, value in params.items()) if params else "")
        self.write(
            f"> {method} {asked}", *([] if body is None else [body.decode() if isinstance(body, bytes) else body])
        )
        for name, value in (headers or {}).items():
            self.lines.append(f"    {name}: {value}")
        found = _decode(answer.text)
        if brief and answer.is_success:
            self.lines += [f"< {line}" for line in _outline(found, brief)]
            return found
        self.write(f"< {answer.status_code}", *([] if answer.text == "" else [found]))
        for name, value in sorted(answer.headers.items()):
            if HEADERS.match(name) and (name, value) != ("content-type", "application/json"):
                self.lines.append(f"    {name}: {value}")
        await self.settle()
        return found

    async def rows(self, path: str, *fields: str, headers: Any = None, **query: Any) -> list[Any]:
        """Get a list, and write down only these fields of its rows (of one field, only its values) and whether there are more."""
        found = await self.send("GET", path, None, query, headers, brief=fields)
        rows: list[Any] = found.get("data", [])
        return rows

    async def page(self, path: str) -> str:
        """Get a page of the inspector, and write down its words and links, one line for each row; return its HTML."""
        answer = await self.served.http.get(path, headers={"accept": "text/html"})
        here = re.findall(r'aria-current="page"[^>]*>\s*([^<]*)', answer.text)
        self.lines += [f"> PAGE {path}", " ".join([f"< {answer.status_code}", *map(str.strip, here)])]
        body = re.sub(r"[0-9.]+ ms\b", "0 ms", SILENT.sub("", answer.text))
        body = body[max(body.find("<main"), 0) :]
        body = re.sub(r"<option[^>]* selected[^>]*>", "*", re.sub(r"<input[^>]* checked[^>]*>", "[x] ", body))
        body = re.sub(
            r'<(?:input|textarea)[^>]* value="([^"]+)"[^>]*type="(?:text|number|search)"[^>]*>', r"[\1]", body
        )
        body = re.sub(r'<a [^>]*href="(/[^"]*)"[^>]*>', r" \1 ", body)
        body = re.sub(r"</(?:td|th|dt|button|option|label|a)>", " | ", re.sub(r"\s+", " ", body))
        for line in re.sub(
            r"</?(?:tr|li|p|h\d|dd|div|section|form|table|ul|summary|pre|nav|header)\b[^>]*>", "\n", body
        ).splitlines():
            words = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", line)).split()).strip("| ")
            self.lines += [f"    {words[:1000]}"] * bool(words)
        return str(answer.text)

    async def settle(self) -> None:
        """Wait for what goes on in the background, and write down what other servers got."""
        await settle(self.served.native)
        for name, body in self.take_requests():
            self.write(f"- {name} got", body)
        payloads = self.hook.payloads
        # Ends of several sessions are reported side by side.
        for body in sorted(payloads[self.seen.get("hook", 0) :], key=_name_session):
            self.write("- hook got", body)
        self.seen["hook"] = len(payloads)

    def take_requests(self) -> Iterator[tuple[str, Any]]:
        """Yield each request that a model got since the last time, with the model's name."""
        for name, model in self.served.models.items():
            if model is not None:
                requests = [*model.requests]
                yield from ((name, one.body) for one in requests[self.seen.get(name, 0) :])
                self.seen[name] = len(requests)

    @property
    def folder(self) -> Path:
        """The folder of the database and of `holdfast.yaml`, for scenarios with `stores=["file"]`."""
        return Path(self.served.store.removeprefix("sqlite:///")).parent

    async def run(
        self,
        *arguments: str,
        given: str | None = None,
        env: Mapping[str, str | None] | None = None,
        terminal: str | None = None,
    ) -> Any:
        """Run `holdfast ARGUMENTS` with the same file of configuration and database, which must be a file; return what it printed."""
        self.served.clock.now += 1000
        usual = {"HOLDFAST_STORE": self.served.store, "HOLDFAST_CONFIG": str(self.folder / "holdfast.yaml")}
        printed = await run_command(arguments, given, {**usual, **(env or {})}, self.served.clock, terminal)
        told = "".join(f"{name}={value} " for name, value in (env or {}).items() if value is not None)
        self.write(f"$ {told}holdfast {' '.join(arguments)}", *([] if given is None else [given]))
        self.write(f"< exit {printed.code}", *([_decode(printed.out)] if printed.out else []))
        self.lines += [f"    ! {line}" for line in printed.err.splitlines()]
        return _decode(printed.out)

    async def later(self, **passed: float) -> None:
        """Let time pass (`days`, `hours`, `minutes`, `seconds`, `ms`), then sweep, as a server does now and then."""
        units = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000, "ms": 1}
        self.served.clock.now += int(sum(units[name] * number for name, number in passed.items()))
        self.lines.append("~ " + ", ".join(f"{number:g} {name}" for name, number in passed.items()) + " later")
        await self.served.native.sweep()
        await self.settle()

    def note(self, label: str, value: Any) -> None:
        """Write down what a call of the library returned, as JSON."""
        self.write(f"= {label}", value)

    async def attempt(self, label: str, work: Awaitable[Any], shown: Callable[[Any], Any] = msgspec.to_builtins) -> Any:
        """Write down what a call of the library returns, as `shown` says, or the error that it raises."""
        self.served.clock.now += 1000
        try:
            found = await work
        except (HoldfastError, LookupError) as exc:
            return self.note(label, f"{type(exc).__name__}: {exc}")
        self.note(label, shown(found))
        return found

    def write(self, line: str, *values: Any) -> None:
        for value in values:
            first, *rest = render(value)
            line += f" {first}"
            self.lines += [line, *(f"    {one}" for one in rest)]
            return
        self.lines.append(line)


def render(value: Any, width: int = WIDTH) -> list[str]:
    """Write JSON over as few lines as fit. Fields that are null are left out, because an answer has many."""
    if isinstance(value, str) and "\n" in value and "\0" not in value:
        return ["|", *(line for line in value.splitlines() if line)]
    value = _drop_null(value)
    short = json.dumps(value, ensure_ascii=False, default=str)
    if len(short) <= width or not isinstance(value, (Mapping, list)) or not value:
        return [short]
    pairs = (
        [(f"{json.dumps(name)}: ", one) for name, one in value.items()]
        if isinstance(value, Mapping)
        else [("", one) for one in value]
    )
    lines = ["{" if isinstance(value, Mapping) else "["]
    for name, one in pairs:
        first, *rest = render(one, width - 2 - len(name))
        lines += [f"  {name}{first}", *(f"  {line}" for line in rest)]
    return [*lines, "}" if isinstance(value, Mapping) else "]"]


def _outline(found: Any, fields: Sequence[str]) -> list[str]:
    rows = [[one.get(name) for name in fields] if len(fields) > 1 else one.get(fields[0]) for one in found["data"]]
    first, *rest = render(rows)
    return [first, *rest, *(["… and more"] if found.get("has_more") else [])]


def _name_session(payload: Mapping[str, Any]) -> tuple[str, str]:
    return payload["session_id"], payload["user_id"]


def _drop_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _drop_null(one) for name, one in value.items() if one is not None}
    return [_drop_null(one) for one in value] if isinstance(value, (list, tuple)) else value


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def steady(text: str, places: Mapping[str, str]) -> str:
    """Put names in place of addresses, and numbers in place of ids and durations that differ each time."""
    for place, name in places.items():
        text = text.replace(place, name)
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        kind = re.match(r"[a-z]{2,10}[-_]", found[0])
        return numbers.setdefault(found[0], f"<{kind[0] if kind else ''}{len(numbers) + 1}>")

    return TIMES.sub(r"\g<1>0", NOW.sub("<now>", RANDOM.sub(number, text)))


async def perform(scenario: Scenario, script: Any, config: Sequence[str], settings: Mapping[str, Any]) -> str:
    """Run a scenario; return its text."""
    async with AsyncExitStack() as stack:
        stack.enter_context(steady_prompts())
        hook = await stack.enter_async_context(receiver())
        lines = [one.replace("$HOOK", hook.url) for one in config]
        script = Speakers(script) if isinstance(script, dict) else script
        served = await stack.enter_async_context(gateway(script, *lines, **settings))
        x = Exchange(served, hook)
        await scenario(x)
        await x.settle()
        places = {hook.url: "http://hook", served.url: "http://holdfast", served.url.partition("//")[2]: "holdfast"}
        places |= {model.url: f"http://{name}" for name, model in served.models.items() if model is not None}
        if ":///" in served.store:
            places |= {served.store: "store", str(x.folder): "folder"}
        return steady("\n".join(x.lines) + "\n", places)
