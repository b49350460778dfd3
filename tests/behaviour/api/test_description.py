"""Answers match `/openapi.json`: requests are generated from the server's own description, and sent by Schemathesis."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from requests import Request
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.behaviour.kit import Served, gateway
from tests.behaviour.kit.objects import fill

EXAMPLES = 2
"""For each operation with names of what is there; half as many with any names."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
Operation = APIOperation[Any, Any, Any, Any]


class Sender:
    """Sends generated requests to a server in which there is something for each path."""

    def __init__(self, runner: asyncio.Runner, served: Served) -> None:
        self.runner, self.served = runner, served
        self.names: dict[str, str] = {}
        self.touched = True

    def check(self, operation: Operation, *, known: bool) -> None:
        """Send some requests for an operation, and compare each answer with the description."""
        if self.touched:
            self.names = self.runner.run(fill(self.served.http))
        paths: Any = {"path_parameters": {one.name: self.names[one.name] for one in operation.path_parameters}}

        @settings(
            max_examples=EXAMPLES if known else EXAMPLES // 2,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=GenerationMode.POSITIVE, **(paths if known else {})))
        def send(case: Case[Any]) -> None:
            answer = self.runner.run(self.send(case))
            # The schema of a stream describes its events, and would be compared with the fields of the stream.
            is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
            case.validate_response(answer, checks=CHECKS[:-1] if is_stream else CHECKS)

        send()

    async def send(self, case: Case[Any]) -> httpx2.Response:
        given = case.as_transport_kwargs(base_url=self.served.url)
        names = ("method", "url", "headers", "params", "json", "data", "cookies", "files")
        made = Request(**{name: given[name] for name in names if given.get(name) is not None}).prepare()
        assert made.method is not None
        assert made.url is not None
        answer = await self.served.http.request(made.method, made.url, content=made.body, headers=dict(made.headers))  # type: ignore[arg-type]
        self.touched |= made.method != "GET" and answer.is_success
        return answer


@pytest.mark.parametrize(
    "methods", [{"GET"}, {"POST"}, {"PUT", "PATCH", "DELETE"}], ids=lambda one: "-".join(sorted(one))
)
def test_answers_match_the_description(methods: set[str]) -> None:
    """No 5xx; status, content type, headers and body as described."""
    with asyncio.Runner() as runner:
        place = gateway(lambda _: "ok", "auth: {required: false}")
        served = runner.run(place.__aenter__())
        try:
            document = runner.run(served.http.get("/openapi.json")).json()
            found = schemathesis.openapi.from_dict(document).get_all_operations()
            operations = [one.ok() for one in found if isinstance(one, Ok)]
            sender = Sender(runner, served)
            chosen = [one for one in operations if one.method.upper() in methods]
            assert len(chosen) >= 20
            for operation in chosen:
                sender.check(operation, known=True)
                if "{" in operation.path:
                    sender.check(operation, known=False)
        finally:
            runner.run(place.__aexit__(None, None, None))


async def test_every_schema_of_the_description_is_used() -> None:
    async with gateway() as served:
        document = (await served.http.get("/openapi.json")).json()
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert set(document["components"]["schemas"]) == used
