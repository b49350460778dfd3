"""Names of keys, and the encoding of names and numbers in members of sorted sets.

A key has the form `prefix:{tag}:letter…`. The tag identifies a tenant and one of its users, or the tenant alone. The tag is a hash
of their names and the names' lengths. So no bytes in a name can lead to another user's keys, or close the braces by which a
cluster finds a key's slot.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from holdfast.domain.memory import Owner

_OFFSET: Final = 1 << 63
_END: Final = b"\0\1"
"""Ends an encoded name. A NUL inside a name is followed by 0xff, which never occurs in UTF-8. So names are sorted by their
bytes, and no encoded name is a prefix of another one.
"""


def _hash(kind: bytes, *names: str) -> str:
    """Return a 128-bit hash of names, in base64."""
    hasher = blake2b(digest_size=16, person=kind)
    for name in names:
        data = name.encode()
        hasher.update(len(data).to_bytes(8, "big") + data)
    return urlsafe_b64encode(hasher.digest()).rstrip(b"=").decode()


# -- parts of members --------------------------------------------------------


def encode_name(name: str) -> bytes:
    """Encode a name as the beginning of a member. The members are then sorted by the bytes of the name."""
    return name.encode().replace(b"\0", b"\0\xff") + _END


def decode_names(member: bytes) -> list[str]:
    """Decode the names at the beginning of a member."""
    return [part.replace(b"\0\xff", b"\0").decode() for part in member.split(_END)[:-1]]


def encode_number(number: int) -> bytes:
    """Encode a 64-bit integer as the beginning of a member. The members are then sorted by its value.

    Raises:
        OverflowError: the number does not fit into 64 bits.
    """
    return (number + _OFFSET).to_bytes(8, "big")


def decode_number(member: bytes) -> int:
    """Decode the number at the beginning of a member."""
    return int.from_bytes(member[:8], "big") - _OFFSET


# -- keys --------------------------------------------------------------------


class ScopeKeys:
    """The keys of a scope, which can have artifacts or state.

    The scope is a session or a user, whose keys are in the user's slot, or the tenant, whose keys are in the tenant's slot.
    """

    def __init__(self, base: str, tenant: str, user_id: str, letter: str, place: str) -> None:
        self.tenant = tenant
        self.user_id = user_id
        self.tag = base
        # The guarded hash. Field g is the guard. For a session, r is the record, p the profile, and i its number and identity.
        self.head = self.key(letter + place)
        self.names = self.key("a" + place)  # names of artifacts, sorted
        self.versions = self.key("z" + place)  # versions of artifacts, sorted
        self.clock = self.key("u")  # a hash: n is the number of the user's last write
        self.recent = self.key("r")  # the user's sessions by `updated_at`
        self.used = self.key("k")  # a hash: the user's artifact that uses a content, by the id of the content
        self.outbox = self.key("o")  # a hash: changes that must be delivered to the tenant's slot
        # A hash: ids of the user's sessions by number, without withdrawn ones; the empty field counts the numbers given so far.
        self.numbers = self.key("n")
        # A hash: the origins of entries, for those sessions of the user that share entries with others.
        self.shared = self.key("h")
        # A hash: the state that the user's sessions share, JSON by key; the empty field has version, bytes and number of keys.
        self.state = self.key("y")
        # Records by place: a hash of all but the values, a hash of values, the places in order, and those that expire by time.
        self.record_infos = self.key("rm" + place)
        self.record_values = self.key("rv" + place)
        self.record_places = self.key("rp" + place)
        self.record_expiries = self.key("re" + place)
        # Searchable records: a hash of their texts by place, and their versions, numbers and places, sorted.
        self.record_texts = self.key("rt" + place)
        self.record_searched = self.key("rs" + place)
        # The index of digests (see `matching`): number of the session and place in its log, by key of the digest.
        self.marks = self.key("d")

    @property
    def of_records(self) -> tuple[bytes, ...]:
        """All keys of the scope's records."""
        own = (self.record_infos, self.record_values, self.record_places, self.record_expiries)
        return (*own, self.record_texts, self.record_searched)

    def key(self, name: str) -> bytes:
        """Return the key with this name in the same slot."""
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
        self.keyed = self.key("i" + place)  # results of writes by idempotency key
        self.compactions = self.key("compactions" + place)  # compactions by id
        self.lives = self.key("w" + place)  # ids of live compactions by view
        self.calls = self.key("m" + place)  # model calls, by turn
        self.media = self.key("f" + place)  # a hash: contents that messages refer to, by their SHA-256
        # A hash: the contents that each entry refers to, and the number of references to each content; see `media`.
        self.media_uses = self.key("e" + place)
        # The session's member in the tenant's indexes, and in the index by id, which does not contain withdrawn sessions.
        self.field = encode_name(user_id) + encode_name(id_) + encode_name(withdrawn)
        self.named = b"" if withdrawn else encode_name(id_) + encode_name(user_id)

    @property
    def dependents(self) -> tuple[bytes, ...]:
        """All keys of the session, without its head."""
        log = (self.log, self.retired, self.views, self.keyed, self.calls)
        media = (self.media, self.media_uses)
        return (*log, *media, self.compactions, self.lives, self.names, self.versions, *self.of_records)


class OwnerKeys(ScopeKeys):
    """The keys of an owner's memories. They are in the user's slot if the owner is a user, otherwise in the tenant's slot.

    Fields of the head: `g` is the guard, `m` are the totals, and after a deletion, `f` is the highest version or number used
    before.
    """

    def __init__(self, base: str, tenant: str, owner: Owner) -> None:
        place = ":" + _hash(b"memories", *owner)
        super().__init__(base, tenant, owner.id if owner.kind == "user" else "", "mo", place)
        self.owner = owner
        self.ids = self.key("mi" + place)  # a hash: numbers by id
        self.metas = self.key("mm" + place)  # a hash: id, version and status by number
        self.bodies = self.key("mb" + place)  # a hash: encoded memories by number
        self.places = self.key(
            "mp" + place
        )  # sorted: each number twice, after an empty status and after the memory's status
        self.versions = self.key("mv" + place)  # numbers by version
        self.recalled = self.key("mr" + place)  # numbers of recalled memories, by time of the last recall
        self.signals = self.key("ms" + place)  # prefix of the keys of signals
        self.diary = self.key("md" + place)

    def signals_key(self, memory: int) -> bytes:
        """Return the key of a memory's signals, which are sorted by their number."""
        return self.signals + b":%d" % memory


class TenantKeys:
    """The keys of a tenant, all in the tenant's slot."""

    INDEXES: Final = (
        *("index", "recent", "named", "withdrawn", "idle", "owned", "expiring", "endings", "due", "used"),
        *("departed", "late"),
    )
    """Names of the indexes that change with writes to users' slots, in the order in which scripts receive their keys."""

    def __init__(self, base: str) -> None:
        self.base = base
        # A hash, in a cluster: the last known write to a session, and which of the sorted sets below contain it.
        self.index = self._key("index")
        self.recent = self._key("recent")  # sessions by `updated_at`
        self.named = self._key("named")  # sessions by id
        self.withdrawn = self._key("withdrawn")  # withdrawn sessions
        self.idle = self._key("idle")  # active sessions without a ttl of their own, by `accessed_at`
        self.owned = self._key("owned")  # active sessions with a ttl of their own, by `accessed_at`
        self.expiring = self._key("expiring")  # active sessions by the time when their own ttl ends
        self.endings = self._key("endings")  # a hash: ends that hooks must be notified of
        self.due = self._key("due")  # these ends by the time when they are due
        self.used = self._key("used")  # a hash: contents that an artifact uses
        self.departed = self._key(
            "departed"
        )  # deleted members by time of deletion, so that late news do not add them again
        self.late = self._key("late")  # a hash: the write that deleted a member
        self.dirty = self._key("dirty")  # users whose outbox may contain something, by the time when they were marked
        self.delivered = self._key(
            "delivered"
        )  # delivered changes of the tenant's state, by the time when they left an outbox
        self.leases = self._key("leases")  # names of leases by expiry
        self.holders = self._key("holders")  # a hash: holders of leases
        self.learned = self._key("learned")  # a hash: calibration data of models
        self.learned_at = self._key("learned_at")  # models by the time of the last write
        self.blobs = self._key("blobs")  # ids of contents
        self.written = self._key("written")  # a hash: time of the last write to a content
        self.api_keys = self._key("api_keys")  # a hash: API keys by id
        self.api_hashes = self._key("api_hashes")  # a hash: their ids by their hashes
        self.api_ids = self._key("api_ids")  # their ids, sorted
        # A hash of sign-ins by their hashes; these by expiry, by time, and by key, tenant, user and time.
        self.sign_ins, self.sign_in_expiries = self._key("sign_ins"), self._key("sign_in_expiries")
        self.sign_in_times, self.sign_in_holders = self._key("sign_in_times"), self._key("sign_in_holders")
        # A hash of deletions by time and id; these in order, and by kind.
        self.deletions, self.deletion_times = self._key("deletions"), self._key("deletion_times")
        self.deletion_kinds = self._key("deletion_kinds")
        # Users and the tenant with records, owners by the time when their first record expires, and a hash of tokens of both.
        self.record_owners = self._key("record_owners")
        self.record_expiries = self._key("record_expiries")
        self.record_tokens = self._key("record_tokens")
        self.memory_owners, self.memory_ids = self._key("memory_owners"), self._key("memory_ids")
        """Owners of memories, sorted, and a hash of the owner of each memory by id, with a mark of the write.

        Both are written before the memory itself."""

    def _key(self, name: str) -> bytes:
        return f"{self.base}:{name}".encode()

    def parts(self, blob: str) -> bytes:
        """Return the key of the hash that has the parts of a content."""
        return f"{self.base}:blob:{_hash(b'blob', blob)}".encode()

    @property
    def indexes(self) -> tuple[bytes, ...]:
        """The Redis keys of the indexes in `INDEXES`, in the same order."""
        return tuple(getattr(self, name) for name in self.INDEXES)


class Keys:
    """Creates the keys of a store, which all begin with its prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.layout = f"{prefix}:layout".encode()  # a hash: the applied layouts, by number
        self.tenants = f"{prefix}:tenants".encode()  # tenants that have or had sessions or memories, sorted
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
    """Return the part of a key that determines its slot in a cluster: the text within braces, or the whole key if it has none."""
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1)
    return key[begin + 1 : end] if begin >= 0 and end > begin + 1 else key
