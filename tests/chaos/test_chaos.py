"""The run that fits into every test run; the longer one is `make chaos`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from holdfast.domain.log import extend
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, Tail
from tests.chaos.clients import Client, Crossed
from tests.chaos.run import Chaos, check
from tests.stores.servers import reach


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """An empty place on a PostgreSQL server."""
    found = reach("postgres")
    url = found.place()
    try:
        yield url
    finally:
        found.drop(url)


async def test_two_servers_in_misfortune(postgres_url: str, tmp_path: Path) -> None:
    """Killed, dropped and slowed for some seconds, they lose, double and mix up nothing."""
    chaos = Chaos(postgres_url, tmp_path, clients=30, seed=7, lease=3_000)
    print(await chaos.run(12))
    assert sum(member.kills for member in chaos.members) > 0
    assert sum(member.network.dropped for member in chaos.members) > 0
    assert all(client.acknowledged for client in chaos.everyone)


def _message(role: Literal["user", "assistant"], text: str) -> Message:
    return Message(role=role, content=text)


def _log(*texts: str) -> list[Entry]:
    """A log in which these were said, and each was answered."""
    said = [message for text in texts for message in (_message("user", text), _message("assistant", f"heard: {text}"))]
    return extend(Tail(), [NewEntry(message=message, tokens=1, timestamp=1) for message in said])[0]


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (_log("(m1) 0"), "lost"),
        (_log("(m1) 0", "(m1) 1", "(m1) 0"), "doubled"),
        (_log("(m1) 1", "(m1) 0"), "out of order"),
        (_log("(m1) 0", "(m1) 1", "(m2) 0"), "(m2)"),
        (_log("(m1) 0", "(m1) 1")[:-1], "replies"),
    ],
)
def test_the_judge_sees_what_is_wrong(log: list[Entry], says: str) -> None:
    """A log that lost, doubled, reordered or mixed something up is told so."""
    client = Client(1, [1], Random(1))
    client.acknowledged = [("(m1) 0", True), ("(m1) 1", True)]
    with pytest.raises(AssertionError, match=says):
        check(client, log)


def test_the_judge_lets_a_right_log_pass() -> None:
    """Also where the last thing said was not acknowledged."""
    client = Client(1, [1], Random(1))
    client.acknowledged = [("(m1) 0", True), ("(m1) 1", True)]
    check(client, _log("(m1) 0", "(m1) 1", "(m1) 2"))


def test_clients_see_foreign_markers() -> None:
    """In whatever they are shown."""
    client = Client(1, [1], Random(1))
    client._look("heard: (m1) 0")
    with pytest.raises(Crossed):
        client._look("heard: (m2) 0")
