"""Every store is held to the contract."""

from tests.contract import *  # noqa: F403  # as anybody's own store is
