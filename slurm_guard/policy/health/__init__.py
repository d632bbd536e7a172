"""Is this node fit to run jobs? Readings and a profile in, findings and a verdict out."""
