"""Grid Engine: the scheduler of a host with `scheduler: grid_engine`."""
