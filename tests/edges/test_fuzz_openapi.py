"""Requests generated from the server's own description: no 5xx, and every answer matches the description.

Schemathesis generates them in process: valid ones, and ones that break the description in one place. The seed is
fixed and the number of examples bounded. The objects that requests name exist in about half of the cases.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Self

import httpx2
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast.config.gateway import Auth
from holdfast.holdfast import Holdfast
from holdfast.server.access import Access
from holdfast.server.app import make_app
from tests.amounts import examples
from tests.clocks import Clock
from tests.edges.access_kit import NAMES, append_response, create_objects

Data = dict[str, Any]
Operation = APIOperation[Any, Any, Any, Any]
Request = Case[Any]
EXAMPLES = max(2, examples(24))
"""For each operation and mode."""
BASE = "http://127.0.0.1"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
LOG: list[Data] = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "found"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": [{"type": "text", "text": "and now?"}]},
    {"role": "assistant", "content": "nothing"},
]
THERE = {**NAMES, "user_id": "default"}
"""Values of path parameters for which there is something."""
EXTENSION = "x-"


def load_description() -> Data:
    """Return the API description of the app."""

    async def fetch_schema() -> Data:
        async with InProcessServer() as place:
            return dict((await place.http.get("/openapi.json")).json())

    return asyncio.run(fetch_schema())


class InProcessServer:
    """A server in this process in which there is something for each path parameter."""

    def __init__(self) -> None:
        self.hf = Holdfast("sqlite://:memory:", clock=Clock())
        # Without `required`, the first key that is created would end the test.
        access = Access(self.hf, Auth(required=False))
        transport = httpx2.ASGITransport(app=make_app(self.hf, access=access, close=False), raise_app_exceptions=True)
        self.http = httpx2.AsyncClient(transport=transport, base_url=BASE, trust_env=False)
        self._touched = True

    async def __aenter__(self) -> Self:
        await self.hf.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        await self.hf.close()

    async def restore(self) -> None:
        """Restore the objects, unless all requests since then were reads or refused."""
        if not self._touched:
            return
        self._touched = False
        await create_objects(self, "default")
        await append_response(self, "default")
        answer = await self.http.post("/v1/sessions/s/messages", json={"messages": LOG})
        assert answer.status_code == 200, answer.text

    async def ask(self, request: requests.PreparedRequest) -> httpx2.Response:
        """Send a prepared request."""
        headers = dict(request.headers)
        assert request.method is not None
        assert request.url is not None
        response = await self.http.request(request.method, request.url, content=request.body, headers=headers)  # type: ignore[arg-type]  # bytes, text or nothing
        self._touched |= request.method != "GET" and not response.is_client_error
        return response


SCHEMA = schemathesis.openapi.from_dict(load_description())
OPERATIONS: dict[str, Operation] = {
    f"{operation.method.upper()} {operation.path}": operation
    for operation in (found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok))
}


def is_breakable(operation: Operation) -> bool:
    """Return True if a request can break the description: it has a body, or a query or header that is more than a
    plain string.
    """
    given = [*operation.query, *operation.headers]
    return bool(list(operation.body)) or any(
        parameter.definition.get("schema") != {"type": "string"} for parameter in given
    )


CASES = [(name, GenerationMode.POSITIVE) for name in OPERATIONS] + [
    (name, GenerationMode.NEGATIVE) for name, operation in OPERATIONS.items() if is_breakable(operation)
]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """Run all examples in one event loop."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def place(runner: asyncio.Runner) -> Iterator[InProcessServer]:
    place = InProcessServer()
    runner.run(place.__aenter__())
    yield place
    runner.run(place.__aexit__())


def make_cases(operation: Operation, mode: GenerationMode) -> st.SearchStrategy[Request]:
    """Return a strategy of requests for an operation; half of them name existing objects."""
    names = [parameter.name for parameter in operation.path_parameters]
    known = {name: THERE[name] for name in names if name in THERE}
    made = operation.as_strategy(generation_mode=mode)
    if not known or mode is GenerationMode.NEGATIVE:
        return made
    return made | operation.as_strategy(generation_mode=mode, path_parameters=known)


@pytest.mark.parametrize(("name", "mode"), CASES, ids=lambda one: one if isinstance(one, str) else one.value)
def test_operation_matches_its_description(
    name: str, mode: GenerationMode, runner: asyncio.Runner, place: InProcessServer
) -> None:
    """No 5xx; status, content type, headers and body as described; requests that the description forbids are refused."""
    operation = OPERATIONS[name]
    checks = CHECKS if mode is GenerationMode.POSITIVE else [*CHECKS, negative_data_rejection]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(make_cases(operation, mode))
    def one(case: Request) -> None:
        request = requests.Request(**to_request_arguments(case)).prepare()
        runner.run(place.restore())
        response = runner.run(place.ask(request))
        # The schema of a stream describes the JSON of its events. The library compares it with the fields of the stream instead.
        streams = response.headers.get("content-type", "").startswith("text/event-stream")
        chosen = [one for one in checks if not (streams and one is response_schema_conformance)]
        case.validate_response(response, checks=chosen)

    one()


def to_request_arguments(case: Request) -> Data:
    """Return the arguments that `requests` needs."""
    names = ("method", "url", "headers", "params", "json", "data", "cookies", "files")
    given = case.as_transport_kwargs(base_url=BASE)
    return {name: given[name] for name in names if given.get(name) is not None}


def test_every_route_is_described() -> None:
    """The description that requests are generated from has every route of the app."""
    assert len(OPERATIONS) >= 30
    assert {one.name for operation in OPERATIONS.values() for one in operation.path_parameters} == set(THERE)
    assert json.dumps(SCHEMA.raw_schema).count('"operationId"') in (0, len(OPERATIONS))
