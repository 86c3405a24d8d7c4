"""The agent: for one client it moves bytes, runs programs and watches files on a host, over stdin and stdout.

The client sends these files over the stream; `arrive` makes a package of them there and calls `loop.main`. The wire is
drawn in docs/architecture.md. Python 3.6 and up, nothing but the standard library. One thread, one poll: nothing may
wait, not even for the fsync of a large file. It knows nothing of schedulers, environments or functions, and writes only
where it is told to.

    files ← failures ← paths, leftovers     frames ← outbox     inotify ← noticing     facts
                     request ← hello uploads reading listing, program ← running repeating
                                                               all these ← verbs ← loop
"""
