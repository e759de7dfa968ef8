"""The archive: transferred records, on a disk, in an object store or in an HDFS; the manifest is the truth."""
