"""Definitions: documents that are imported, at run time and when the node starts."""
