"""Clusterfn inside other programs: Jupyter, dask, joblib and Hydra. No core module imports one of them."""
