"""Store artifacts: files of a session or a user, with a name, versions and a media type.

The content of a version is its bytes. It is first written completely, under a random key. Only after that, the store of the sessions links
the key to the name and version of an artifact. So a name is never used as a path. A regular sweep deletes contents that belong to no
artifact.
"""
