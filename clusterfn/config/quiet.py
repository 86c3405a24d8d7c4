"""Quiet mode as clusterfn.yml has it. Apart from the reader of that file, because whatever prints a sentence asks."""

in_file = False  # `quiet:` of the configuration that was loaded last
