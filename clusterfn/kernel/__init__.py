"""Jupyter kernels that run in a job on a host: kernelspecs, and the proxy that each client starts.

    connection_file, job, link ← proxy        kernelspecs

`proxy` looks like a kernel to its client. It finds or starts the job of the kernel (`job`), and carries the connections
of the client through the connection to the host (`link`) to the holder there (`clusterfn/bridge/kernel`).
"""
