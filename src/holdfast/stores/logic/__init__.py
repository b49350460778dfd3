"""Implement the store contract for any database that runs named statements.

Each operation is a generator, called its steps. It yields the names and parameters of statements, and receives the rows that
they return. A `Database` (see `steps`) runs the statements.

| modules | subject |
| --- | --- |
| `reads`, `writes`, `compactions`, `lifecycle`, `matching`, `media`, `artifacts`, `memories`, `state`, `tenants` | the statements of each store operation |
| `index_reads`, `index_writes`, `index_vectors` | the statements of each index operation |
| `store`, `index` | the classes with the contracts' methods: they check arguments and run the steps |
| `rows`, `index_rows` | conversion of rows to structs and back |
| `network` | helpers for databases on a server |

`holdfast.stores.sql` contains the text of the statements in each dialect. The terms are those of the contract: `holdfast.stores.log`
defines live path, view and compaction, and `holdfast.recall.base` space, source and document.
"""
