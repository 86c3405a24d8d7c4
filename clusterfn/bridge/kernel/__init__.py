"""Run a Jupyter kernel inside a job, and carry the connections of its five channels through one stream.

    stream ← carried ← far_end
    process, far_end ← hold        attach, launch, dask_program

`stream` and `carried` are the protocol, which the client's side (`clusterfn/integrations/jupyter`) uses too. `hold`
runs in the job's worker: it starts the kernel (`launch`), survives the loss of the connection, and decides when the
job ends. The stream carries connections, not messages: identities, signatures and binary buffers arrive as they were
sent.
"""
