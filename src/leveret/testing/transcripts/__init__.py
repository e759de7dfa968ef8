"""Transcripts of replication: what nodes say to each other, step by step, as text files that tests play again.

    tests/transcripts/cluster/*.txt, tests/transcripts/followers/*.txt       the files, in the order of a specification
    make transcripts                                                          writes them anew

Each file is a story: commands, and below each of them, indented, all that happens until things are at rest. The nodes
are those of testing.simulation, so a story takes no time, and the same story happens the same way each time.
"""
