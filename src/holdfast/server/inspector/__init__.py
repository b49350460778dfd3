"""The inspector: web pages that show what is stored, what each prompt contained, and why.

The server renders all pages with Jinja2. A page reads through the same functions as the REST API, and changes data only through REST routes
(see `holdfast.server.inspector.actions`). `frame` renders templates, `access` signs browsers in, and each other module has the pages of one
subject. docs/decisions.md explains the design.
"""
