"""Jupyter: what runs inside a notebook, and what a Jupyter client starts as its kernel.

    cell_magic
    connection_file, kernel_job, kernel_link ← kernel_proxy ← tunnel        kernelspecs

The first line is imported only inside IPython: `%%cluster`, and what a notebook shows of clusterfn. `kernel_proxy`
looks like a kernel to its client. It finds or starts the job of the kernel (`kernel_job`). It carries the connections
of the client through the connection to the host (`kernel_link`) to the holder of the kernel
(`clusterfn/bridge/kernel`). `tunnel` does the same for a browser and a whole JupyterLab.
"""
