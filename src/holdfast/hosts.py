"""Names and addresses of hosts."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Return True if `host` is this machine, so that a server that listens on it can be reached only from here."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a host name; only DNS knows which machine it means
        return False


def is_network(text: str) -> bool:
    """Return True for an IP address or a network of addresses."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True
