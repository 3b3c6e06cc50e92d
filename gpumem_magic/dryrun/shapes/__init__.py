"""Results without values: shapes that meta kernels tell, and what stands for a value."""
