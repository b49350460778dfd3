"""What the stores of this package share: what every operation does, as steps that name their statements.

`reads`, `writes`, `overlays` and `tenants` say what happens, `state` what becomes of what sessions share; `store` is the contract on top of
them, `rows` what a row means.
A database runs the steps: `holdfast.stores.sql` knows the statements of each dialect.
"""
