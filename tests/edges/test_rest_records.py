"""Records over REST: values, versions, lists, changes, owners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.clocks import Clock
from tests.edges.server import Served, gateway

Owner = dict[str, str]
RECORDS = "/v1/records"
OWNERS: tuple[Owner, ...] = ({"session_id": "s"}, {"user_id": "ada"}, {"scope": "tenant"})
BOB = {"user_id": "bob"}


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


@pytest.mark.parametrize("owner", OWNERS)
async def test_changes_take_effect_together(served: Served, owner: Owner) -> None:
    changes: list[dict[str, Any]] = [
        {"op": "put", "namespace": ["a", "b"], "key": "x", "value": None, "expect": 0},
        {"op": "put", "namespace": ["c"], "key": "y", "value": "AA==", "encoding": "base64"},
        {"op": "delete", "namespace": ["c"], "key": "z"},
    ]
    done = (await served.http.post(of(owner), json={"changes": changes})).json()
    assert done["existed"] == [False, False, False]
    assert (await served.http.get(at(owner, "c", "y"))).json()["version"] == done["version"]
    again = await served.http.post(of(owner), json={"changes": [changes[1] | {"value": "AQ=="}, changes[0]]})
    assert again.status_code == 412
    assert (await served.http.get(at(owner, "c", "y"))).json()["value"] == "AA=="
    wrong: dict[str, Any]
    for wrong in (
        {"changes": []},
        {"changes": [{**changes[1], "value": "!"}]},
        {"changes": [{**changes[0], "ttl": 0}]},
        {"changes": [{**changes[0], "namespace": []}]},
        {"changes": [changes[2], changes[2]]},
        {"changes": [{**changes[0], "op": "set"}]},
    ):
        assert (await served.http.post(of(owner), json=wrong)).status_code == 400, wrong
    many = [{"op": "delete", "namespace": ["a"], "key": str(one)} for one in range(101)]
    assert (await served.http.post(of(owner), json={"changes": many})).status_code == 413


async def test_owners_are_separate(served: Served) -> None:
    for at_, owner in enumerate((*OWNERS, BOB)):
        await put(served, at(owner), at_)
    found = [(await served.http.get(at(owner))).json()["value"] for owner in (*OWNERS, BOB)]
    assert found == [0, 1, 2, 3]
    assert (await served.http.get(at({"session_id": "none"}))).json()["error"]["code"] == "session_not_found"


async def test_a_deleted_session_and_user_report_their_records(served: Served, tmp_path: Path) -> None:
    for owner in OWNERS:
        await put(served, at(owner), "12")
    gone = (await served.http.delete("/v1/sessions/s?user_id=ada")).json()
    assert (gone["receipt"]["records"], gone["receipt"]["record_bytes"]) == (1, 4)
    assert (await served.http.delete("/v1/users/ada")).json()["receipt"]["records"] == 1


@pytest.mark.parametrize("owner", OWNERS)
async def test_records_are_searched_by_their_text(served: Served, owner: Owner) -> None:
    text = "The parcel to Oslo arrived late"
    await put(served, at(owner), {"value": {"a": 1}, "text": text, "encoding": "json"})
    changes = [
        {"op": "put", "namespace": ["a", "b"], "key": "x", "value": "AP8=", "encoding": "base64", "text": "A parcel"},
        {"op": "put", "namespace": ["a"], "key": "plain", "value": "parcel"},
    ]
    (await served.http.post(of(owner), json={"changes": changes})).raise_for_status()
    assert (await served.http.get(at(owner))).json()["text"] == text

    async def search(**query: str) -> Any:
        return (await served.http.get(RECORDS, params={**owner, **query})).raise_for_status().json()

    found = await search(q="late parcels", namespace="a")
    (hit,) = found["data"]
    assert (hit["id"], hit["value"], hit["text"], hit["snippet"]) == ("a/k", {"a": 1}, text, text)
    assert ([text[start:stop] for start, stop in hit["highlights"]], hit["parts"]) == (
        ["parcel", "late"],
        {"keyword": hit["score"]},
    )
    assert (found["mode"], found["notes"], found["has_more"]) == ("keyword", [], False)
    nested = (await search(q="late parcels", nested="true", values="false"))["data"]
    assert [one["id"] for one in nested] == ["a/k", "a/b/x"]
    assert not nested[0].keys() & {"value", "text", "encoding"}
    assert [one["id"] for one in (await search(q="parcel", namespace="a/b", prefix="x"))["data"]] == ["a/b/x"]
    (await served.http.delete(at(owner))).raise_for_status()
    assert (await search(q="late", nested="true"))["data"] == []
    for query in (
        {"q": "x"},
        {"q": " ", "namespace": "a"},
        {"q": "x", "namespace": "a", "limit": "0"},
        {"q": "x", "namespace": "a", "order": "desc"},
        {"mode": "keyword", "namespace": "a"},
    ):
        refused = await served.http.get(RECORDS, params={**owner, **query})
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error"), query
    for bad, status in (("", 400), (7, 400), ("x" * 70_000, 413)):
        refused = await put(served, at(owner), {"value": 1, "text": bad, "encoding": "json"})
        assert (refused.status_code, "text" in refused.text) == (status, True), (bad, refused.text)


async def test_a_search_returns_no_more_than_a_page_of_values(served: Served) -> None:
    for key in "abc":
        await put(served, at(OWNERS[1], key=key), {"value": "x" * 2_000_000, "text": "parcel", "encoding": "json"})
    found = (await served.http.get(of(OWNERS[1], q="parcel", namespace="a"))).json()
    assert len(found["data"]) == 2
    few = (await served.http.get(of(OWNERS[1], q="parcel", namespace="a", values="false"))).json()
    assert len(few["data"]) == 3
