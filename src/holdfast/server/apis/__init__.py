"""API formats of the gateway. Each module defines an `ApiFormat` (see `api_format`); `holdfast.server.chat` serves them all."""
