"""Schema sync: how two schemas compare, and what a downstream changes."""
