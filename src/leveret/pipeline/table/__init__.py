"""The archive as a table: a row a message, for Spark's SQL and for Parquet files."""
