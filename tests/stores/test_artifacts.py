"""Limits of artifacts, made smaller through the store's internal functions."""

from __future__ import annotations

import pytest

from holdfast.domain.artifact import UserRef
from holdfast.errors import TooLarge
from holdfast.stores.base import Store
from tests.contract.artifacts import artifact
from tests.contract.kit import REF, session

pytestmark = pytest.mark.parametrize("url", ["sqlite-memory"], indirect=True)


@pytest.mark.parametrize("limit", ["ARTIFACT_NAMES", "ARTIFACT_VERSIONS", "ARTIFACTS"])
async def test_names_and_versions_have_limits(store: Store, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """The message names the number."""
    monkeypatch.setattr(f"holdfast.stores.scope_changes.{limit}", 3)
    await store.create(session())
    for at in range(3):
        await store.add_artifact(REF, artifact("a" if limit == "ARTIFACT_VERSIONS" else f"a{at}", f"b{at}"))
    with pytest.raises(TooLarge, match="3"):
        await store.add_artifact(REF, artifact("a" if limit == "ARTIFACT_VERSIONS" else "b", "b9"))
    if limit == "ARTIFACT_NAMES":
        assert (await store.add_artifact(REF, artifact("a0", "b9"))).version == 1


@pytest.mark.parametrize("limit", ["ARTIFACT_NAMES", "ARTIFACTS", "room"])
@pytest.mark.parametrize("whose", ["user", "session"])
async def test_limit_errors_name_the_owner(
    store: Store, monkeypatch: pytest.MonkeyPatch, limit: str, whose: str
) -> None:
    """Users and sessions have separate limits."""
    room = 5 if limit == "room" else None
    if room is None:
        monkeypatch.setattr(f"holdfast.stores.scope_changes.{limit}", 1)
    await store.create(session())
    scope, prefix = (UserRef("ann"), "user:") if whose == "user" else (REF, "")
    await store.add_artifact(scope, artifact(f"{prefix}a", "b1"), room=room)
    with pytest.raises(TooLarge, match=f"^the {whose} has ") as refused:
        await store.add_artifact(scope, artifact(f"{prefix}b", "b2"), room=room)
    assert refused.value.param == ("data" if limit == "room" else "name")
