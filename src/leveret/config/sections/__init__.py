"""The settings of a node by subject. Each is declared once: key, kind, default and help."""
