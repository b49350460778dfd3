"""Artifacts: versions, lists in pages, ranges, names, types, limits, rights, and what becomes of them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.behaviour.kit import bearer
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange

FIELDS = ("name", "version", "mime_type", "size", "author", "created_at")
SHOWN = ("content-", "etag", "x-artifact", "repr-", "accept-ranges", "x-content", "cache-control")
OWNERS = ("s?user_id=ada", "t?user_id=ada", "s?user_id=adam")


async def make_sessions(x: Exchange) -> None:
    for user_id, name in (("ada", "s"), ("ada", "t"), ("adam", "s")):
        x.served.clock.now += 1000
        await x.served.rest.create(name, user=user_id)


def path_of(name: str, owner: str = OWNERS[0]) -> str:
    session, _, query = owner.partition("?")
    return f"/v1/sessions/{session}/artifacts" + (f"/{quote(name, safe='')}" if name else "") + f"?{query}"


async def rows(x: Exchange, *fields: str, owner: str = OWNERS[0], **query: Any) -> list[Any]:
    session, _, user_id = owner.partition("?user_id=")
    return await x.rows(f"/v1/sessions/{session}/artifacts", *fields, user_id=user_id, **query)


async def save(x: Exchange, name: str, content: str, owner: str = OWNERS[0], query: str = "", **headers: str) -> Any:
    """Save a text; `if_match` is a header."""
    given = {field.replace("_", "-"): value for field, value in headers.items()}
    return await x.send("PUT", path_of(name, owner) + query, content.encode(), None, given)


async def load(
    x: Exchange, name: str, owner: str = OWNERS[0], query: str = "", method: str = "GET", **headers: str
) -> Any:
    """Note status, content and headers of an artifact; of a range only the headers that are about it."""
    x.served.clock.now += 1000
    given = {field.replace("_", "-"): value for field, value in headers.items()}
    answer = await x.served.http.request(method, path_of(name, owner) + query, headers=given)
    about = ("content-length", "content-range", "x-artifact") if headers else SHOWN
    shown = {field: value for field, value in answer.headers.items() if field.startswith(about)}
    x.note(f"{method} {path_of(name, owner)}{query} {given or ''}", [answer.status_code, answer.text, shown])
    return answer


@exchange(stores=DATABASES)
async def test_versions(x: Exchange) -> None:
    await make_sessions(x)
    for name in ("a.txt", "user:a.txt"):
        first = await save(x, name, "zero", query='&author=writer&metadata={"draft":true,"n":[1]}')
        etag = (await load(x, name)).headers["etag"]
        await save(x, name, "one", if_match='"0"')
        await save(x, name, "one", if_match=etag)
        for match in ('"0"', "1", etag.replace("0-", "1-"), "*", '"7"', "x"):
            await save(x, name, "two", if_match=match)
        await save(x, name, "two", if_none_match="*")
        await save(x, name, "two", if_none_match='"1"')
        await save(x, name, "two", if_none_match="*", if_match='"1"')
        await save(x, "no-" + name.removeprefix("user:"), "two", if_match="*")
        x.note("same content as the first", first["sha256"] == (await save(x, name, "zero"))["sha256"])
        for owner in OWNERS:
            await x.rows(path_of("", owner), *FIELDS)
            await x.rows(path_of("", owner) + f"&name={name}", *FIELDS)
            await load(x, name, owner)
            await load(x, name, owner, "&version=0")
        for version in (9, 1, 4, 0):
            await x.delete(path_of(name) + f"&version={version}")
            await load(x, name)
        await save(x, name, "three")
        await save(x, name.upper().replace("USER", "user"), "other")
        await x.delete(path_of(name, OWNERS[1]))
        await x.delete(path_of(name))
        await x.delete(path_of(name))
        await save(x, name, "again", if_none_match="*")
        await save(x, name, "again", if_none_match="*")
        await save(x, name, "again, with another content", if_none_match="*")


@exchange(stores=DATABASES)
async def test_lists(x: Exchange) -> None:
    await make_sessions(x)
    for name in ("b", "a", "a b", "é", "Z", "a.txt", "a-1", "z", "user:b", "user:a", "user:Q", "10", "9", "_", "ß"):
        await x.served.http.put(path_of(name), content=b"1")
        await x.served.http.put(path_of(name), content=b"22")
    await save(x, "user:other", "x", OWNERS[2])
    await save(x, "c", "x", OWNERS[1])
    for owner in OWNERS:
        await x.rows(path_of("", owner), "name", "version")
    for limit in (1, 4, 11, 12, 13, 15, 16):
        after = None
        for _ in range(20):
            page = await rows(x, "name", limit=limit, after=after)
            after = page[-1]["name"] if page else None
            if len(page) < limit or limit > 9:
                break
    for after in ("A", "a c", "zz", "user:a", "user:b", "user:zz", "É", "b", "/", ""):
        await rows(x, "name", limit=3, after=after)
    for number in range(5):
        await x.served.http.put(path_of("b"), content=b"x" * number)
    for query in (
        "", "&limit=3", "&limit=3&after=2", "&after=6", "&limit=7", "&limit=6", "&after=x", "&after=-1", "&limit=0"
    ):  # fmt: skip
        await x.rows(path_of("") + f"&name=b{query}", "version", "size")
    for query in ("&name=none", "&name=B", "&name=", "&limit=1001", "&order=desc"):
        await x.get(path_of("") + query)
    await x.get(path_of("") + "&limit=1")
    await x.get(path_of("") + "&limit=1&name=b")


@exchange()
async def test_contents(x: Exchange) -> None:
    await make_sessions(x)
    await x.served.http.put(path_of("a.html"), content=b"0123456789")
    await x.served.http.put(path_of("user:é x"), content=b"")
    etag = (await load(x, "a.html")).headers["etag"]
    for name in ("a.html", "user:é x"):
        for method in ("GET", "HEAD"):
            for span in ("0-0", "2-4", "8-", "9-20", "10-", "-3", "-20", "-0", "5-4", "0-9", "0-1,3-4", "-", "a-b"):
                await load(x, name, method=method, range=f"bytes={span}")
    for more in ({"if_range": etag}, {"if_range": '"0-other"'}, {"if_none_match": etag}, {"if_none_match": "*"}):
        await load(x, "a.html", range="bytes=2-4", **more)
    for tags in (f'"x", W/{etag}', '"0"', etag.strip('"'), f"{etag}x"):
        await load(x, "a.html", if_none_match=tags)
    await load(x, "a.html", range="BYTES=1-2")
    await load(x, "a.html", range="lines=1-2")
    for query in ("&version=0", "&version=1", "&version=x", "&version=-1"):
        await load(x, "a.html", query=query)
    await load(x, "A.html")
    await load(x, "none")
    await load(x, "a.html", "none?user_id=ada")


@exchange()
async def test_names_and_types(x: Exchange) -> None:
    await make_sessions(x)
    allowed = ("a.tar.gz", "A-z_0 (1)@+,.MD", "日本.json", "e\u0301.csv", "é", "user:con", "x" * 255, "ß.webp", "1.yml")
    refused = (
        "a/b", ".a", "a.", " a", "a ", "con", "NUL.txt", "com1.x", "lpt9", "a:b", "user:", "a\0", "\u202ea", "\u0301a"
    )  # fmt: skip
    for name in (*allowed, *refused, "user:user:a", "é" * 128, "USER:a", "E\u0301.csv", "STRASSE.webp", "ss.webp"):
        done = await x.served.http.put(path_of(name), content=b"text")
        found = done.json()
        x.note(
            ascii(name[:30]), [done.status_code, found.get("mime_type"), found.get("name", "")[:30], found.get("error")]
        )
    contents: dict[str, bytes] = {
        "png": b"\x89PNG\r\n\x1a\n",
        "jpeg": b"\xff\xd8\xff\xe0",
        "gif": b"GIF89a",
        "webp": b"RIFF1234WEBP",
        "zip": b"PK\x03\x04",
        "pdf": b"x" * 1019 + b"%PDF-",
        "no pdf": b"x" * 1020 + b"%PDF-",
        "text": b"GIF88a",
        "nothing": b"",
    }
    names = ("a.png", "a.txt", "a", "a.svg", "a.zip")
    types = (
        "image/png", "IMAGE/PNG; q=1", "text/plain;charset=utf-8", "application/x-www-form-urlencoded", "x", 'a/b; c="d e"'
    )  # fmt: skip
    for label, content in contents.items():
        found = [(await x.served.http.put(path_of(name), content=content)).json().get("mime_type") for name in names]
        x.note(label, found)
        for kind in types:
            done = await x.served.http.put(path_of("b"), content=content, headers={"content-type": kind})
            x.note(f"{label} as {kind}", [done.json().get("mime_type"), done.json().get("error", {}).get("message")])
    for query in ("&metadata=[]", "&metadata={", "&author=", "&author=" + "a" * 600, '&metadata={"a":NaN}', "&other=1"):
        await save(x, "c", "x", query=query)
    for size in (16_384, 16_385):
        done = await x.served.http.put(
            path_of("c"), params={"metadata": '{"a":"' + "x" * (size - 8) + '"}'}, content=b""
        )
        x.note(f"{size} bytes", [done.status_code, done.json().get("error")])
    await x.rows(path_of("") + "&name=c", *FIELDS)


@exchange(
    (), "storage: {artifacts: {max_bytes: 1024, max_total: 2500}}", "redaction: {enabled: true}", stores=DATABASES
)
async def test_sizes(x: Exchange) -> None:
    await make_sessions(x)
    for prefix in ("", "user:"):
        for name, size, owner in (
            ("a", 1024, 0), ("a", 1025, 0), ("a", 1024, 0), ("b", 453, 0), ("b", 452, 0), ("c", 1, 0), ("c", 0, 0), ("b", 1000, 1), ("b", 1000, 2)
        ):  # fmt: skip
            done = await x.served.http.put(path_of(prefix + name, OWNERS[owner]), content=b"x" * size)
            x.note(f"{prefix}{name}, {size}, {owner}", [done.status_code, done.json().get("error", {}).get("message")])
        await x.delete(path_of(prefix + "a") + "&version=0")
        await save(x, prefix + "c", "x")
        await x.rows(path_of(""), "name", "version", "size")


@exchange()
async def test_numbers(x: Exchange) -> None:
    await make_sessions(x)
    native, ref = x.served.native, (await x.served.native.session("s", user_id="ada")).ref
    for prefix in ("", "user:"):
        for number in range(999):
            await native.artifacts.save(ref, f"{prefix}n{number:03}", b"")
        for label, name in (("last", "n999"), ("one more", "more"), ("known", "n000"), ("after a delete", "more")):
            if label == "after a delete":
                await native.artifacts.delete(ref, f"{prefix}n001")
            await x.attempt(label, native.artifacts.save(ref, prefix + name, b""), lambda one: [one.name, one.version])
        for number in range(2, 1000):
            await native.artifacts.save(ref, f"{prefix}n000", b"%d" % number)
        await x.attempt("1,001 versions", native.artifacts.save(ref, f"{prefix}n000", b""), lambda one: one.version)
        x.note("versions", len((await native.artifacts.versions(ref, f"{prefix}n000")).artifacts))
        await rows(x, "version", name=f"{prefix}n000", limit=2, after=997)
        await x.delete(path_of(f"{prefix}n000"))
        gone = await native.artifacts.forget(ref) if prefix == "" else None
        x.note("forgotten", gone and [gone.artifacts, gone.bytes])
    await rows(x, "name", limit=1)


@exchange()
async def test_rights_of_keys(x: Exchange) -> None:
    await make_sessions(x)
    await save(x, "a", "of ada")
    await save(x, "user:a", "of adam", OWNERS[2])
    for fields in ({"user_id": "ada", "role": "write"}, {"role": "read"}, {"role": "write"}):
        x.note("with a key of", fields)
        x.served.http.headers.update(bearer(await x.served.create_key(**fields)))
        for owner in (*OWNERS, "s?", "t?"):
            await x.rows(path_of("", owner), "name")
            await load(x, "a", owner)
            await save(x, f"user:{fields['role']}", "x", owner)
            await x.delete(path_of("none", owner))
