"""Jupyter: what runs inside a notebook, and what a Jupyter client starts as its kernel.

    cell_magic
    kernel_job, kernel_link ← near_end ← tunnel
    jupyter_files, near_end ← kernel_proxy

The first line is imported only inside IPython: `%%cluster`, and what a notebook shows of clusterfn. `kernel_proxy`
looks like a kernel to its client, and `kernel_job` finds or starts its job. `near_end` carries the connections of local
programs through the connection to the host (`kernel_link`) to the far end in a job (`clusterfn/bridge/kernel`): those
of a kernel's client, of dask (`clusterfn/integrations/dask`), and of a browser for a port or for JupyterLab (`tunnel`).
"""
