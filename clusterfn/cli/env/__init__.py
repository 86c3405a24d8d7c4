"""`clusterfn env`: environments locked here, and built, shown, mended and removed on hosts.

`words` says which commands there are, `which` what their words mean; `locking`, `building`, `showing` and `keeping` do
them. Data goes to stdout, sentences and progress to stderr.
"""
