"""Sessions in Redis. In a cluster, all keys of a user are in one slot, and all keys of a tenant's own data are in another.

The operations are in modules that are named like their protocols, such as `sessions`, `log` and `memories`. `log` also copies the logs of
forks, and `tenants` has keys, sign-ins and the journal of deletions. The other modules:

| module | subject |
| --- | --- |
| `store` | the store, which combines all operations |
| `handle` | decorators that run methods as transactions |
| `database` | runs transactions, and commits each write with one script |
| `nodes`, `connection` | the servers, and connections to them |
| `address`, `health` | URLs, and checks of the servers' configuration |
| `keys`, `records` | names of keys, and encodings of values |
| `outbox` | delivery of changes to a tenant's indexes in a cluster |
| `convert` | conversion of data of Holdfast 0.1 |

These modules share some terms. The head of a session is its main hash. It has three fields: the guard, a unique value that every
write replaces; the record, with the session's small fields; and the profile, with its large fields. If a write to a user's keys
requires changes of the tenant's indexes, these changes are called news.
"""
