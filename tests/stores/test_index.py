"""Every index is held to the contract."""

from tests.contract.index import *  # noqa: F403  # as anybody's own index is
