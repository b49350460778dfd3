"""Sessions in Redis. All keys of a user are in one slot of a cluster, and all keys of a tenant in another.

The operations are in modules named like their protocols, such as `sessions`, `log` and `memories`. The other modules:

| module | subject |
| --- | --- |
| `store` | the store that combines all operations |
| `handle` | the decorators that make methods transactions |
| `database` | runs transactions, and commits each write with one script |
| `nodes`, `connection` | the servers, and connections to them |
| `address`, `health` | URLs, and checks of the servers' configuration |
| `keys`, `records` | names of keys, and encodings of values |
| `outbox` | delivery of changes to a tenant's indexes in a cluster |
| `convert` | conversion of data of Holdfast 0.1 |
"""
