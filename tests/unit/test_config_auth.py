"""The section `auth` of the configuration."""

from __future__ import annotations

import pytest

from holdfast.config import load
from holdfast.config.gateway import Auth
from holdfast.errors import ConfigError

JWT = "issuer: https://i, audience: a"


def auth(text: str) -> Auth:
    return load(f"auth: {text}", env={}).auth


def test_defaults() -> None:
    """Keys are required once one exists, without a rate limit."""
    found = load("", env={}).auth
    assert (found.required, found.rate, found.jwt, found.kind) == (None, 0, None, "keys")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{required: true}", "always"),
        ("{required: false}", "never"),
        (f"{{jwt: {{{JWT}, jwks_url: f}}}}", "always"),
        (f"{{required: false, jwt: {{{JWT}, jwks_url: f}}}}", "never"),
        ("{rate: 60}", "keys"),
    ],
)
def test_when_credentials_are_required(text: str, kind: str) -> None:
    assert auth(text).kind == kind


def test_jwt_settings() -> None:
    """A single audience needs no list, and the keys may be in a file."""
    found = auth(f"{{jwt: {{{JWT}, jwks_url: 'https://i/keys'}}}}").jwt
    assert found is not None
    assert (found.audience, found.file) == (("a",), None)
    assert (found.user_claim, found.tenant_claim, found.role_claim, found.role) == ("sub", None, None, "write")
    local = auth(f"{{jwt: {{{JWT}, jwks_url: keys/set.json}}}}").jwt
    assert local is not None
    assert local.file == "keys/set.json"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"{JWT}", "jwks_url: missing"),
        (f"{JWT}, jwks_url: 'http://i/keys'", "must start with https://"),
        (f"{JWT}, jwks_url: 'ftp://i/keys'", "jwks_url: expected a URL"),
        (f"{JWT}, jwks_url: f, role: owner", "one of admin, read, write"),
        ("issuer: i, audience: [], jwks_url: f", "audience: is empty"),
        ("issuer: i, jwks_url: f", "audience: missing"),
        ("audience: a, jwks_url: f", "issuer: missing"),
    ],
)
def test_invalid_jwt_settings_are_rejected(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        auth(f"{{jwt: {{{text}}}}}")
    assert place in str(caught.value)


def test_a_loopback_issuer_may_use_http() -> None:
    assert auth(f"{{jwt: {{{JWT}, jwks_url: 'http://127.0.0.1:9/keys'}}}}").jwt
