"""Servers as real processes: Leveret, RabbitMQ, etcd, HDFS, Spark, an object store."""
