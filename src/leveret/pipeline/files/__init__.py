"""Files: the archive's files on a disk, in an object store or in an HDFS, that survive a power loss."""
