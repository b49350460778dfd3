"""Which session a request goes on with that names none: by what it says, among those of its user."""
