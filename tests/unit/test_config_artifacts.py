"""`storage.artifacts`: settings, rejected values and masked keys."""

from __future__ import annotations

import pytest

from holdfast import config
from holdfast.artifacts import ArtifactSettings
from holdfast.errors import ConfigError
from holdfast.limits import ARTIFACT_BYTES


def _load_settings(text: str) -> ArtifactSettings:
    return config.load(f"storage: {{artifacts: {text}}}", env={}).storage.artifacts


def test_an_empty_section_gives_the_defaults() -> None:
    assert _load_settings("{}") == ArtifactSettings()
    assert _load_settings("{}").max_bytes == ARTIFACT_BYTES


def test_configured_values_are_used() -> None:
    text = "{bucket: b, endpoint: 'http://e', region: r, access_key: a, secret_key: s, max_bytes: 1MiB}"
    assert _load_settings(text) == ArtifactSettings(
        bucket="b",
        endpoint="http://e",
        region="r",
        access_key="a",
        secret_key="s",
        max_bytes=1 << 20,
    )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{backend: s3}", "bucket"),
        ("{backend: disk, bucket: b}", "bucket"),
        ("{backend: database, path: p}", "path"),
        ("{bucket: b, path: p}", "path"),
        ("{region: r}", "region"),
        ("{bucket: b, access_key: a}", "access_key"),
        ("{bucket: b, endpoint: e}", "endpoint"),
        ("{bucket: /p}", "bucket"),
        ("{types: [image/*]}", "types"),
        ("{backend: tape}", "backend"),
        ("{max_bytes: 1}", "max_bytes"),
        ("{buckt: b}", "buckt"),
    ],
)
def test_problems_name_the_key(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load_settings(text)
    assert [line.split(": ")[1] for line in caught.value.problems] == [f"storage.artifacts.{key}"]


def test_access_keys_are_masked() -> None:
    settings = _load_settings("{bucket: b, access_key: A-SEEN-NOWHERE, secret_key: S-SEEN-NOWHERE}")
    loaded = config.load(
        "storage: {artifacts: {bucket: b, access_key: A-SEEN-NOWHERE, secret_key: S-SEEN-NOWHERE}}", env={}
    )
    assert "S-SEEN" not in repr(settings)
    assert "SEEN" not in repr(loaded)
