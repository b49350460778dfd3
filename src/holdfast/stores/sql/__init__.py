"""Named statements (see `statements`) and numbered migrations (see `migrations`) of the SQL stores.

Each dialect has a folder with `overrides.sql` and `migrations/`. The operations in `holdfast.stores.logic` refer to statements
by name. A store provides the driver, and runs the statements of an operation in a transaction.
"""
