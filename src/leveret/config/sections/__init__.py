"""The settings of a node by subject, each declared once: key, kind, default and help."""
