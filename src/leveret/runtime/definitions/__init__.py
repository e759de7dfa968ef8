"""Definitions: the import of definitions documents, at run time and at the start of a node."""
