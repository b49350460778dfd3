"""API formats of the gateway. Each is an `ApiFormat` (see `api_format`); `server.chat` handles all of them."""
