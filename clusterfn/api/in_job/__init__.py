"""What a function calls inside its job: its checkpoint folder, the warning before its end, and the state of a training.

Imports only the standard library, the errors and the names of files. Outside of a job everything here works too, so the
same function runs on your own machine without clusterfn.
"""
