"""Implement the store contract for any database that runs named statements.

Each operation is a generator, called its steps. It yields the names and parameters of statements, and receives the rows that
they return. A `Database` (see `steps`) runs the statements.

| modules | subject |
| --- | --- |
| `sessions`, `log`, `lifecycle`, `state`, `artifacts`, `memories`, `records`, `matching`, `tenants` | the methods of `Store`: each checks its arguments and runs its steps |
| `owners` | the row that every write of state, records, memories and artifacts locks: versions, totals and numbers |
| `media`, `compactions` | parts of the steps of a log |
| `items` | small things of a tenant: keys, leases, ends of sessions, deletions and so on |
| `index`, `index_lookups`, `index_writes` | the methods of an index, and their steps |
| `rows`, `index_rows` | conversion of rows to structs and back |
| `handle` | how a method runs its steps |
| `network` | helpers for databases on a server |

`holdfast.stores.sql` contains the text of the statements in each dialect. The terms are those of the contract: `holdfast.stores.log`
defines live path, view and compaction, and `holdfast.recall.base` space, source and document.
"""
