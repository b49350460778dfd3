"""Sessions in Redis: every user's in one slot of their own, what belongs to a tenant in the tenant's.

`store` opens one, `database` runs the steps of `holdfast.stores.logic` on a working copy (`work`, and the statements in
`sessions`, `lists`, `log`, `overlays`, `matching`, `media`, `artifacts`, `shared`, `memories`, `tenants`, `api_keys`) and commits what they
changed with one script. `nodes` and `connection` are the way to the servers, `address` and `health` what is said of them, `keys` and `records`
what lies there, `outbox` what follows a write in a cluster.
"""
