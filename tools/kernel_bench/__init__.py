"""Tools for maintainers, which the wheel leaves out: benches of the kernels, and checks of a device."""
