"""Adapters that plug Holdfast into agent frameworks. Each module needs the extra of its name, and uses only Holdfast's public API."""
