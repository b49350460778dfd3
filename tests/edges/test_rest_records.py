"""Records over REST: values, versions, lists, changes, owners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.clocks import Clock
from tests.edges.server import Served, gateway

Owner = dict[str, str]
RECORDS = "/v1/records"
OWNERS: tuple[Owner, ...] = ({"session_id": "s"}, {"user_id": "ada"}, {"scope": "tenant"})


@pytest.fixture
def clock() -> Clock:
    """A clock that a test moves."""
    return Clock()


@pytest.fixture
async def served(clock: Clock) -> AsyncIterator[Served]:
    """A server with ada's session `s`."""
    async with gateway(lambda _: "ok", clock=clock) as (served, _):
        await served.hf.session("s", user_id="ada")
        yield served


def at(owner: Owner, namespace: str = "a", key: str = "k") -> str:
    """The path of a record."""
    return f"{RECORDS}/record?{urlencode({**owner, 'namespace': namespace, 'key': key})}"


def of(owner: Owner, **query: str) -> str:
    """The path of the records of an owner."""
    return f"{RECORDS}?{urlencode({**owner, **query})}"


async def put(served: Served, url: str, value: Any, **headers: str) -> Any:
    """Put a JSON value, or bytes in base64."""
    body = value if isinstance(value, dict) and "encoding" in value else {"value": value}
    return await served.http.put(url, json=body, headers={name.replace("_", "-"): one for name, one in headers.items()})


@pytest.mark.parametrize("owner", OWNERS)
async def test_records_are_put_read_and_deleted(served: Served, owner: Owner, clock: Clock) -> None:
    made = await put(served, at(owner), {"x": [None]})
    version = made.json()["version"]
    assert (made.status_code, made.json()["created"], made.headers["etag"]) == (200, True, f'"{version}"')
    found = (await served.http.get(at(owner))).json()
    assert found == {
        "object": "record",
        "id": "a/k",
        "namespace": ["a"],
        "key": "k",
        "version": version,
        "created_at": clock.now,
        "updated_at": clock.now,
        "expires_at": None,
        "size": 12,
        "encoding": "json",
        "value": {"x": [None]},
        "text": None,
    }
    again = await put(served, at(owner), {"value": "AP8=", "encoding": "base64", "ttl": 1_000}, If_Match=str(version))
    assert (again.json()["created"], again.json()["expires_at"]) == (False, clock.now + 1_000)
    read = await served.http.get(at(owner))
    assert (read.json()["encoding"], read.json()["value"]) == ("base64", "AP8=")
    for headers in ({"If_Match": str(version)}, {"If_None_Match": "*"}):
        stale = await put(served, at(owner), 1, **headers)
        assert (stale.status_code, stale.json()["error"]["code"]) == (412, "stale_record")
    assert (await served.http.delete(at(owner), headers={"if-match": str(version)})).status_code == 412
    clock.now += 1_000
    assert (await served.http.get(at(owner))).json()["error"]["code"] == "record_not_found"
    assert (await put(served, at(owner), 1, If_None_Match="*")).status_code == 200
    assert (await served.http.delete(at(owner))).json()["deleted"] is True
    assert (await served.http.delete(at(owner))).status_code == 404


@pytest.mark.parametrize("owner", OWNERS)
async def test_records_are_listed_in_pages(served: Served, owner: Owner) -> None:
    names = [("a", "1"), ("a", "2/~x"), ("a", "3"), ("a/b~1c", "1"), ("b", "1")]
    for namespace, key in names:
        await put(served, at(owner, namespace, key), key)
    page = (await served.http.get(of(owner, namespace="a", limit="2"))).json()
    assert ([one["id"] for one in page["data"]], page["has_more"]) == (["a/1", "a/2~1~0x"], True)
    rest = (await served.http.get(of(owner, namespace="a", after=page["last_id"]))).json()
    assert ([one["key"] for one in rest["data"]], rest["has_more"]) == (["3"], False)
    down = (await served.http.get(of(owner, namespace="a", order="desc", values="false"))).json()
    assert ([one["key"] for one in down["data"]], "value" in down["data"][0]) == (["3", "2/~x", "1"], False)
    assert len((await served.http.get(of(owner, nested="true"))).json()["data"]) == 5
    assert len((await served.http.get(of(owner, namespace="a", prefix="2/"))).json()["data"]) == 1
    found = (await served.http.get(f"{RECORDS}/namespaces?{urlencode({**owner, 'limit': 2})}")).json()
    assert ([one["namespace"] for one in found["data"]], found["has_more"]) == ([["a"], ["a", "b/c"]], True)
    rest = (await served.http.get(f"{RECORDS}/namespaces?{urlencode({**owner, 'after': found['last_id']})}")).json()
    assert [one["id"] for one in rest["data"]] == ["b"]
    assert (await served.http.delete(of(owner))).json()["records"] == 5


async def test_a_search_returns_no_more_than_a_page_of_values(served: Served) -> None:
    for key in "abc":
        await put(served, at(OWNERS[1], key=key), {"value": "x" * 2_000_000, "text": "parcel", "encoding": "json"})
    found = (await served.http.get(of(OWNERS[1], q="parcel", namespace="a"))).json()
    assert len(found["data"]) == 2
    few = (await served.http.get(of(OWNERS[1], q="parcel", namespace="a", values="false"))).json()
    assert len(few["data"]) == 3
