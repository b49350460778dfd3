"""Where things lie: names of keys, and names as parts of sorted members.

A key is `prefix:{tag}:letter…`. The tag stands for a tenant and a user, or for a tenant: a hash of both with their lengths, so
that no bytes in an identifier can lead to somebody else's keys, or out of the braces that a cluster hashes by.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from holdfast.domain.memory import Owner

_OFFSET: Final = 1 << 63
_END: Final = b"\0\1"
"""Behind a name that another one follows. A NUL inside a name is followed by 0xff, which no UTF-8 has, so that names sort as
their bytes do, and no name ends where another one goes on."""


def _hash(kind: bytes, *names: str) -> str:
    """128 bits for some names, whatever bytes they have."""
    hasher = blake2b(digest_size=16, person=kind)
    for name in names:
        data = name.encode()
        hasher.update(len(data).to_bytes(8, "big") + data)
    return urlsafe_b64encode(hasher.digest()).rstrip(b"=").decode()


# -- parts of members --------------------------------------------------------


def encode_name(name: str) -> bytes:
    """A name as the beginning of a member: sorted by its bytes, and ended."""
    return name.encode().replace(b"\0", b"\0\xff") + _END


def decode_names(member: bytes) -> list[str]:
    """The names that a member consists of."""
    return [part.replace(b"\0\xff", b"\0").decode() for part in member.split(_END)[:-1]]


def encode_number(number: int) -> bytes:
    """A whole number of 64 bits as the beginning of a member: sorted by its value.

    Raises:
        OverflowError: it has more.
    """
    return (number + _OFFSET).to_bytes(8, "big")


def decode_number(member: bytes) -> int:
    """The number that a member begins with."""
    return int.from_bytes(member[:8], "big") - _OFFSET


# -- keys --------------------------------------------------------------------


class ScopeKeys:
    """The keys of what has artifacts: a session, or a user; all are in the user's slot. Of no user: of what has the tenant's state."""

    def __init__(self, base: str, tenant: str, user_id: str, letter: str, place: str) -> None:
        self.tenant = tenant
        self.user_id = user_id
        self.tag = base
        # What is guarded. A hash: g its guard; of a session r its record, p its profile, i its number and whose it is.
        self.head = self.key(letter + place)
        self.names = self.key("a" + place)  # names of artifacts, sorted
        self.versions = self.key("z" + place)  # versions of artifacts, sorted
        self.clock = self.key("u")  # a hash: n is the number of the user's last write
        self.recent = self.key("r")  # the user's sessions by `updated_at`
        self.used = self.key("k")  # a hash: which artifact of the user has a content
        self.outbox = self.key("o")  # a hash: what the tenant's slot has to be told
        # A hash: the user's sessions by number, those that lost their names left out; under no name, how many there were.
        self.numbers = self.key("n")
        # A hash: the origins of the entries of those of the user's sessions that share some.
        self.shared = self.key("h")
        # A hash: the state that the user's sessions share, JSON by key; under no name version, bytes, and number of keys.
        self.state = self.key("y")
        # Where digests are, see `matching`: number of the session and place in its log, by what was said.
        self.marks = self.key("d")

    def key(self, name: str) -> bytes:
        """Return a key in the same slot."""
        return f"{self.tag}:{name}".encode()


class SessionKeys(ScopeKeys):
    """The keys of one session."""

    def __init__(self, base: str, tenant: str, user_id: str, id_: str, withdrawn: str) -> None:
        place = ":" + _hash(b"session", id_, withdrawn)
        super().__init__(base, tenant, user_id, "session", place)
        self.id = id_
        self.withdrawn = withdrawn
        self.log = self.key("log" + place)  # a list: the entries on the live path, in order
        self.retired = self.key("x" + place)  # retired entries by `seq`
        self.views = self.key("v" + place)
        self.keyed = self.key("i" + place)  # what idempotency keys stood for
        self.compactions = self.key("compactions" + place)  # compactions by id
        self.lives = self.key("w" + place)  # ids of live compactions by view
        self.calls = self.key("m" + place)  # model calls, by turn
        self.media = self.key("f" + place)  # a hash: contents that messages refer to, by their SHA-256
        self.media_uses = self.key(
            "e" + place
        )  # a hash: what each entry refers to, and of each content how often; see `media`
        # What the tenant's indexes call it; and the same in the index by id, which has none that lost their names.
        self.field = encode_name(user_id) + encode_name(id_) + encode_name(withdrawn)
        self.named = b"" if withdrawn else encode_name(id_) + encode_name(user_id)

    @property
    def dependents(self) -> tuple[bytes, ...]:
        """The keys of all that goes with it, but for its head."""
        log = (self.log, self.retired, self.views, self.keyed, self.calls)
        media = (self.media, self.media_uses)
        return (*log, *media, self.compactions, self.lives, self.names, self.versions)


class OwnerKeys(ScopeKeys):
    """The keys of an owner's memories: a user's in the user's slot, others in the tenant's. The head has g its guard, m what it has, f its floor."""

    def __init__(self, base: str, tenant: str, owner: Owner) -> None:
        place = ":" + _hash(b"memories", *owner)
        super().__init__(base, tenant, owner.id if owner.kind == "user" else "", "mo", place)
        self.owner = owner
        self.ids = self.key("mi" + place)  # a hash: numbers by id
        self.metas = self.key("mm" + place)  # a hash: id, version and status by number
        self.bodies = self.key("mb" + place)  # a hash: what memories say by number
        self.places = self.key("mp" + place)  # numbers, after no status and after each memory's own, sorted
        self.versions = self.key("mv" + place)  # numbers by version
        self.recalled = self.key("mr" + place)  # numbers of those that were recalled, by when that was last
        self.signals = self.key("ms" + place)  # what keys of signals begin with
        self.diary = self.key("md" + place)

    def signals_key(self, memory: int) -> bytes:
        """Signals of a memory, by their numbers."""
        return self.signals + b":%d" % memory


class TenantKeys:
    """The keys of what belongs to a tenant, all in the tenant's slot."""

    INDEXES: Final = (
        *("index", "recent", "named", "withdrawn", "idle", "owned", "expiring", "endings", "due", "used"),
        *("departed", "late"),
    )
    """Those that follow writes to users' slots; scripts are given them in this order."""

    def __init__(self, base: str) -> None:
        self.base = base
        # A hash, in a cluster: the last write to a session that is known, and which of the sorted ones below have it.
        self.index = self._key("index")
        self.recent = self._key("recent")  # sessions by `updated_at`
        self.named = self._key("named")  # sessions by id
        self.withdrawn = self._key("withdrawn")  # sessions that lost their name
        self.idle = self._key("idle")  # active sessions without a ttl of their own, by `accessed_at`
        self.owned = self._key("owned")  # active sessions with one, by `accessed_at`
        self.expiring = self._key("expiring")  # active sessions by when they expire by their own ttl
        self.endings = self._key("endings")  # a hash: ends that hooks are to be told of
        self.due = self._key("due")  # they by when they are due
        self.used = self._key("used")  # a hash: contents that an artifact has
        self.departed = self._key("departed")  # what went, by when, so that news that come late do not bring it back
        self.late = self._key("late")  # a hash: the write with which it went
        self.dirty = self._key("dirty")  # users whose outbox may hold something, by when they were noted
        self.delivered = self._key("delivered")  # changes of its state that outboxes brought, by when they left these
        self.leases = self._key("leases")  # names of leases by when they expire
        self.holders = self._key("holders")  # a hash: who holds a lease
        self.learned = self._key("learned")  # a hash: what is kept of models
        self.learned_at = self._key("learned_at")  # models by when they were written
        self.blobs = self._key("blobs")  # keys of contents
        self.written = self._key("written")  # a hash: when a content was written last
        self.api_keys = self._key("api_keys")  # a hash: API keys by id
        self.api_hashes = self._key("api_hashes")  # a hash: their ids by their hashes
        self.api_ids = self._key("api_ids")  # their ids, sorted
        self.memory_owners, self.memory_ids = self._key("memory_owners"), self._key("memory_ids")
        """Who has memories, sorted; and a hash: whose a memory is by its id, with a mark of the write. Both before there is any."""

    def _key(self, name: str) -> bytes:
        return f"{self.base}:{name}".encode()

    def parts(self, blob: str) -> bytes:
        """A hash: the parts of a content."""
        return f"{self.base}:blob:{_hash(b'blob', blob)}".encode()

    @property
    def indexes(self) -> tuple[bytes, ...]:
        """Their keys in order."""
        return tuple(getattr(self, name) for name in self.INDEXES)


class Keys:
    """The keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.layout = f"{prefix}:layout".encode()  # a hash: the layouts that this place has had, by number
        self.tenants = f"{prefix}:tenants".encode()  # tenants that had sessions or memories, sorted
        self.session = lru_cache(4096)(self._session)
        self.user = lru_cache(1024)(self._user)
        self.tenant = lru_cache(1024)(self._tenant)
        self.owner = lru_cache(1024)(self._owner)

    def _base(self, tenant: str, user_id: str) -> str:
        return f"{self.prefix}:{{{_hash(b'user', tenant, user_id)}}}"

    def _session(self, tenant: str, user_id: str, id_: str, withdrawn: str) -> SessionKeys:
        return SessionKeys(self._base(tenant, user_id), tenant, user_id, id_, withdrawn)

    def _user(self, tenant: str, user_id: str) -> ScopeKeys:
        base = self._base(tenant, user_id) if user_id else self.tenant(tenant).base
        return ScopeKeys(base, tenant, user_id, "w", "")

    def _owner(self, tenant: str, owner: Owner) -> OwnerKeys:
        base = self._base(tenant, owner.id) if owner.kind == "user" else self.tenant(tenant).base
        return OwnerKeys(base, tenant, owner)

    def _tenant(self, tenant: str) -> TenantKeys:
        return TenantKeys(f"{self.prefix}:{{{_hash(b'tenant', tenant)}}}")


def extract_hash_tag(key: bytes) -> bytes:
    """What a cluster finds a key's slot by: what its braces hold, or the whole of it."""
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1)
    return key[begin + 1 : end] if begin >= 0 and end > begin + 1 else key
