"""For a while: what was here is in `holdfast.testing.contract.kit` and `tests.stores.releases`."""

from holdfast.testing.contract.kit import *  # noqa: F403
from tests.stores.releases import know_only as know_only
