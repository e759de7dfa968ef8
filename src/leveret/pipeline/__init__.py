"""The warm standby's data pipeline: transfer, recovery and inspection, on PySpark."""
