"""API keys and tokens for the authorization tests."""

from __future__ import annotations

import json
from functools import cache
from itertools import count
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from holdfast.access import ID_RANDOM, SECRET_RANDOM, create_key
from holdfast.holdfast import Holdfast
from holdfast.stores.keys import ApiKey
from tests.clocks import START

ISSUER, AUDIENCE = "https://issuer.example", "holdfast"
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1(), "ES256K": ec.SECP256K1()}
_numbers = count(1)


async def create_stored_key(hf: Holdfast, **fields: Any) -> str:
    """Create a key in the store of `hf`; return its text."""
    key = create_key(next(_numbers).to_bytes(ID_RANDOM + SECRET_RANDOM, "little"))
    known = {"tenant": hf.tenant, "created_at": START, **fields}
    await hf.store.add_key(ApiKey(id=key.id, hash=key.hash, **known))
    return key.text


def bearer(key: str) -> dict[str, str]:
    """Return the header that carries a key."""
    return {"authorization": f"Bearer {key}"}


# -- tokens ------------------------------------------------------------------


@cache
def signing_key(kind: str = "RS256") -> Any:
    """Return a private key of that kind, the same one each time."""
    if kind in CURVES:
        return ec.generate_private_key(CURVES[kind])
    if kind == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public_key(kind: str = "RS256", *, kid: str | None = "k1", **more: Any) -> dict[str, Any]:
    """Return the public half as a JSON Web Key."""
    made_by: Any = jwt.get_algorithm_by_name(kind)
    data = made_by.to_jwk(signing_key(kind).public_key(), as_dict=True)
    return {**data, **({"kid": kid} if kid is not None else {}), **more}


def key_set(*keys: dict[str, Any]) -> bytes:
    """Return a key set with these keys."""
    return json.dumps({"keys": list(keys or (public_key(),))}).encode()


def token(kind: str = "RS256", *, kid: str | None = "k1", now: int = START, **claims: Any) -> str:
    """Return a token of the issuer; a claim of None is omitted."""
    known = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": now // 1000 + 600, **claims}
    said = {name: value for name, value in known.items() if value is not None}
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(said, signing_key(kind), algorithm=kind, headers=headers)
