"""The process: its clock and the memory that its allocator keeps."""
