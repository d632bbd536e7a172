"""Prolog, epilog and sweep: what runs as root around the jobs of a node."""
