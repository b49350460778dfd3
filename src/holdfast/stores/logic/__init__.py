"""What the stores of this package share: what every operation does, as steps that name their statements.

`reads`, `writes`, `overlays`, `life`, `claims`, `matching`, `media`, `artifacts`, `memories`, `keys` and `tenants` say what happens, `state` what
becomes of what sessions share, `index_reads`, `index_writes` and `index_vectors` what an index does; `store` (with `artifact_store` and
`memory_store`) and `index` are the contracts on top of them, `rows` and `index_rows` what a row means. A database runs the steps:
`holdfast.stores.sql` knows the statements of each dialect, `network` what databases behind one need.
"""
