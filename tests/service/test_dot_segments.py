"""Names that URLs cannot contain as a segment of a path are refused for everything new."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.agents import Agent, Roster
from holdfast.config import load
from holdfast.config.check import find_refusals
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest
from holdfast.stores.checks import check_key
from holdfast.stores.keys import ApiKey
from tests.service.turns_kit import SHARED
from tests.stores.servers import place

DOTS = pytest.mark.parametrize("dots", [".", ".."])


@SHARED
async def test_every_store_refuses_such_sessions_and_users(kind: str, tmp_path: Any) -> None:
    with place(kind, tmp_path) as url:
        async with holdfast.open(url) as hf:
            session = await hf.session("s", user_id="ada")
            await session.append("hi")
            exported = await hf.export(session.ref)
            for dots in (".", ".."):
                for call in (
                    hf.session(dots, user_id="ada"),
                    hf.session("s", user_id=dots),
                    hf.import_(exported, session_id=dots),
                    session.fork(id=dots),
                    hf.move(session.ref, user_id=dots),
                    hf.user_artifacts(dots).save("user:a.txt", b"x"),
                    hf.user_state(dots).set("user:a", 1),
                    hf.records("n", user_id=dots).put("k", 1),
                    hf.memories.remember("Ada likes tea.", user_id=dots),
                    hf.memories.remember("Ada likes tea.", agent=dots),
                ):
                    with pytest.raises(InvalidRequest, match=r"resolve it in the path of a URL"):
                        await call
                assert not await hf.delete(SessionRef(dots, dots))
            assert await hf.records(("..", "."), user_id="ada").put("..", 1) > 0
            assert [one.id for one in (await hf.sessions()).sessions] == ["s"]


@DOTS
def test_keys_have_no_such_user_or_tenant(dots: str) -> None:
    given: dict[str, Any] = {"id": "i", "hash": b"h" * 32, "name": "n", "role": "write", "created_at": 1}
    for tenant, user_id, param in ((dots, None, "tenant"), ("acme", dots, "user_id")):
        with pytest.raises(InvalidRequest) as refused:
            check_key(ApiKey(tenant=tenant, user_id=user_id, **given))
        assert refused.value.param == param


@DOTS
def test_agents_have_no_such_name(dots: str) -> None:
    with pytest.raises(InvalidRequest, match="name of an agent"):
        Roster(agents={dots: Agent(name=dots)})
    config = load(f'agents: {{"{dots}": {{instruction: Be kind.}}}}', env={})
    assert [path for path, _ in find_refusals(config)] == ["agents"]
