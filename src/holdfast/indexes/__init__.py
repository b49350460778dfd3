"""The index service: an index that follows what is written, off every turn's path, and can be made anew at any time.

feeding      entries and memories as documents         service    what a tenant's index is told, and when it is in
sources      one source, brought up to its log         following  the store that tells it
settings     which index, and where it lies            walking    what nobody told: found by looking, after a crash too
later        an index that opens at its first use      embedding  vectors, behind
"""
