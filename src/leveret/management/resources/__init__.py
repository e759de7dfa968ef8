"""One resource of the API a file: its routes first, then the handlers."""
