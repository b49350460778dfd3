"""Connections to a database server that break, are missing or busy: what is written, and what the program is told."""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import holdfast
from holdfast.errors import InvalidRequest, StoreUnavailable
from tests.behaviour.kit import World, assistant, fresh_store, refused, texts, through, user
from tests.behaviour.kit.data import State
from tests.behaviour.kit.proxy import Loss, Proxy
from tests.behaviour.kit.seams import reach

pytestmark = through("library")


@pytest.fixture(params=["postgres", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with fresh_store(request.param, tmp_path) as made:
        yield made


def get_server(url: str) -> Any:
    return reach("mysql" if url.startswith("mysql") else "postgres")


@pytest.mark.parametrize("loss", ["request", "answer"])
async def test_writes_are_made_once_by_a_broken_connection(world: World, url: str, loss: Loss) -> None:
    async with Proxy(url) as proxy, world.open("hooks: {}", store=proxy.url) as hf:
        session = await hf.given("s")
        # PostgreSQL commits with the statement that has the message; MySQL is told to, by a statement of its own.
        proxy.arm(b"COMMIT" if url.startswith("mysql") else b"marked-7f3a", loss)
        await session.append(user("marked-7f3a"), assistant("b"))
        proxy.arm(b"COMMIT", loss)
        await session.replace(1, assistant("c"))
        proxy.arm(b"COMMIT", loss)
        await State(hf, user="ada").increment("user:n")
        assert proxy.broke == 3
        assert texts(await session.messages()) == ["marked-7f3a", "c"]
        assert await State(hf, user="ada").all() == {"user:n": 1}
        assert await (await session.native()).verify() == 3


async def test_closed_idle_connections_are_replaced(world: World, url: str) -> None:
    """Reads and writes work after a restart of the server."""
    async with world.open(store=url) as hf:
        session = await hf.given("s")
        await asyncio.gather(*(session.messages() for _ in range(8)))
        for number in range(3):
            assert await asyncio.to_thread(get_server(url).end, url) > 0
            assert len(await session.messages()) == number
            assert await asyncio.to_thread(get_server(url).end, url) > 0
            await session.append(user("Hi"))


async def test_many_callers_share_few_connections(world: World, url: str) -> None:
    """Two connections for sessions, and two for the index, serve many concurrent callers, of whom some are cancelled."""
    async with world.open(store=f"{url}{'&' if '?' in url else '?'}pool=2") as hf:
        sessions = [await hf.given(f"s{at}") for at in range(40)]
        tasks = [asyncio.create_task(one.append(user(one.id))) for one in sessions]
        for hops, task in enumerate(tasks[::4]):
            for _ in range(hops):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(await asyncio.to_thread(get_server(url).connections, url)) <= 4
        for at, one in enumerate(sessions):
            assert texts(await one.messages()) in ([[one.id]] if at % 4 else [[one.id], []])


async def test_a_message_that_the_server_does_not_take_names_its_setting(world: World, url: str) -> None:
    async with world.open(store=url) as hf:
        session, text = await hf.given("s"), "x" * (20 << 20)
        if url.startswith("mysql") and get_server(url).ask("SELECT @@max_allowed_packet")[0][0] < 21 << 20:
            with refused("too_large", "max_allowed_packet"):
                await session.append(user(text))
        else:
            await session.append(user(text))
            assert texts(await session.messages()) == [text]


async def test_damaged_rows_are_reported(world: World, url: str) -> None:
    """Other sessions work."""
    async with world.open(store=url) as hf:
        session, state = await hf.given("s", user("a")), State(hf, user="ada")
        await state.set(**{"user:n": 1})
        damage = "UPDATE entries SET payload = 'no JSON'; UPDATE state_values SET data = 'no JSON';"
        await asyncio.to_thread(get_server(url).in_place, url, damage)
        for call, key in ((session.messages(), ""), (state.increment("user:n"), "user:n' is ")):
            with refused("store_corrupt", f"{key}damaged"):
                await call
        assert texts(await (await hf.given("t", user("b"))).messages()) == ["b"]


async def test_a_missing_database_is_named(url: str) -> None:
    missing = get_server(url).base.partition("?")[0].rpartition("/")[0] + "/holdfast_test_no_such_place"
    with pytest.raises(StoreUnavailable, match="the database does not exist"):
        async with holdfast.open(missing):
            pass


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "mysql", "mariadb"])
@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("ada:secret@host", "names no database"),
        ("ada:secret@host/", "names no database"),
        ("ada:secret@host/a/b", "names no database"),
        ("ada:secret@host:port/db", "port"),
        ("ada:secret@host/db?sslmode=perhaps", "sslmode must be"),
    ],
)
async def test_an_invalid_url_is_refused_without_its_password(scheme: str, rest: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        async with holdfast.open(f"{scheme}://{rest}"):
            pass
    assert "secret" not in str(caught.value)


GREETING = bytes.fromhex(f"450000000a3800{'00' * 4}{'31' * 8}00088a21020008000d{'00' * 10}{'31' * 12}00")
"""What a MySQL server says first, but for the name of its login method."""


@pytest.mark.parametrize(
    ("scheme", "mode", "is_trusted"),
    [("postgresql", "require", True), ("mysql", "require", True), ("mysql", "verify-full", False)],
)
async def test_only_verify_full_verifies_the_certificate(
    scheme: str, mode: str, is_trusted: bool, tmp_path: Path
) -> None:
    key, name, now = ec.generate_private_key(ec.SECP256R1()), x509.Name([]), dt.datetime.now(dt.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + dt.timedelta(1))
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "pem").write_bytes(private + made.sign(key, hashes.SHA256()).public_bytes(pem))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "pem")
    greeting, size, answer = (GREETING + b"mysql_native_password\0", 36, b"") if scheme == "mysql" else (b"", 8, b"S")
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"{scheme}://ada:x@127.0.0.1:{listener.getsockname()[1]}/db?sslmode={mode}"

    def encrypt() -> bool:
        """Return True if the client sends something over an encrypted connection."""
        with listener:
            listener.settimeout(10)
            connection = listener.accept()[0]
        with connection:
            connection.settimeout(10)
            connection.sendall(greeting)
            connection.recv(size, socket.MSG_WAITALL)
            connection.sendall(answer)
            with suppress(OSError), context.wrap_socket(connection, server_side=True) as encrypted:
                return bool(encrypted.recv(1))
        return False

    encrypted = asyncio.create_task(asyncio.to_thread(encrypt))
    with pytest.raises(StoreUnavailable):
        await holdfast.open(url).__aenter__()
    assert await encrypted is is_trusted
