"""Sessions in Redis. All keys of a user are in one slot of a cluster, and all keys of a tenant in another.

`store` opens a store. The operations are in modules named like their protocols, such as `sessions`, `log` and `memories`.
`handle` makes their methods transactions, and `database` runs these and commits each write with one script. `nodes` and `connection`
talk to the servers, `address` parses URLs, and `health` checks the servers' configuration. `keys` and `records` define keys and
encodings. `outbox` delivers changes to a tenant's indexes in a cluster, and `convert` converts data of Holdfast 0.1.
"""
