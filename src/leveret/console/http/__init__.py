"""The console's own HTTP server: sessions, pages, and the documents for pages."""
