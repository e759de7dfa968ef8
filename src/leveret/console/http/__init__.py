"""The console's own HTTP server: sessions, pages, and what pages show."""
