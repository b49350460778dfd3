"""Implement the store contract for any database that runs named statements.

Each operation is a generator of steps that name their statements; a `Database` (`steps`) runs them.

| modules | subject |
| --- | --- |
| `reads`, `writes`, `compactions`, `lifecycle`, `matching`, `media`, `artifacts`, `memories`, `state`, `tenants` | what each operation reads and writes |
| `index_reads`, `index_writes`, `index_vectors` | what an index reads and writes |
| `store`, `index` | the contracts: they check arguments and run the steps |
| `rows`, `index_rows` | conversion of rows to structs and back |
| `network` | what databases behind a network need |

`holdfast.stores.sql` has the statements of each dialect.
"""
