"""Files: the archive's files on a disk, in an object store or in an HDFS, durable across power loss."""
