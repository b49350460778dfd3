"""`storage.artifacts`: settings, rejected values and masked keys."""

from __future__ import annotations

from holdfast import config
from holdfast.artifacts import ArtifactSettings
from holdfast.limits import ARTIFACT_BYTES


def _load_settings(text: str) -> ArtifactSettings:
    return config.load(f"storage: {{artifacts: {text}}}", env={}).storage.artifacts


def test_an_empty_section_gives_the_defaults() -> None:
    assert _load_settings("{}") == ArtifactSettings()
    assert _load_settings("{}").max_bytes == ARTIFACT_BYTES


def test_access_keys_are_masked() -> None:
    settings = _load_settings("{bucket: b, access_key: A-SEEN-NOWHERE, secret_key: S-SEEN-NOWHERE}")
    loaded = config.load(
        "storage: {artifacts: {bucket: b, access_key: A-SEEN-NOWHERE, secret_key: S-SEEN-NOWHERE}}", env={}
    )
    assert "S-SEEN" not in repr(settings)
    assert "SEEN" not in repr(loaded)
