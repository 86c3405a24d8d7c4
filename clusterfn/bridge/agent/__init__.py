"""The agent: for one client it moves bytes, runs programs and watches files on a host, over stdin and stdout.

The client sends these files over the stream; `bootstrap` makes a package of them on the host and calls `server.main`.
The protocol is in docs/reference/protocol.md. Python 3.6 and up, nothing but the standard library. One thread, one
poll: nothing may block, not even for the fsync of a large file. It knows nothing of schedulers, environments or
functions, and writes only where the client says.

    files, frames, trusted, libc ← file_watcher ← handler ← downloads ← growing_files;
    handler ← facts, uploads, forked ← processes; all of these ← server
"""
