"""Spark: finding a Java, starting a session, and one Python worker of it."""
