"""Spark: finds a Java, starts a session, and prepares its Python workers."""
