"""Values of the log and of replies. This package is pure: it does no I/O and imports no other package of Holdfast.

items    the parts in which a reply arrives
"""
