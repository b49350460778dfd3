"""Named statements (see `statements`) and numbered migrations (see `migrations`) of the SQL stores.

Both are files that contain the text of all dialects. The operations in `holdfast.stores.logic` refer to statements by name. A store
provides the driver, and runs the statements of an operation in a transaction.
"""
