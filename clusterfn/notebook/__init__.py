"""What clusterfn shows in a Jupyter notebook. Imported only inside IPython."""
