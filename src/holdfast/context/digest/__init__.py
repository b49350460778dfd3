"""The digest: evicted messages, condensed to their facts without a model.

- `pool`: the facts that may still be used, from step to step, and the digest block.
- `facts`: reading the facts of a unit.
- `speech`: sentences of users and assistants, and which of them are worth nothing.
- `texts`: sentences, tables and listings.
- `weights`: the worth of a fact by itself.
- `page`: choosing facts, and writing as many of them as fit.
"""
