"""Whether clusterfn reads, locks and builds the files of environments that people really have: `make files`."""
