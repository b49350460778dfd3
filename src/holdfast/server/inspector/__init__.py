"""The inspector: web pages that show what is stored, what each prompt contained, and why.

The server renders all pages with Jinja2. A page reads through services or routes of the REST API, and changes data through routes of the
REST API (see `holdfast.server.inspector.actions`). `frame` renders templates, `access` signs browsers in, and each other module has the
pages of one subject. docs/decisions.md explains the design.
"""
